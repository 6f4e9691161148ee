"""A record from a file can be shown and computed with, or is refused with words."""

import math
from pathlib import Path
from typing import Any

import pytest

from autofit.core.answer import Ratio
from autofit.core.errors import PlanFileError
from autofit.core.measurement import Measurement
from autofit.planfile import load, problems
from tests.test_planfile import OWN, PROOF, RECORD, changed


def test_what_a_search_found_is_sound() -> None:
    assert list(problems(RECORD)) == []
    assert list(problems(RECORD.model_copy(update={"gain": None}))) == []


def proof(**changes: Any) -> dict[str, Measurement]:
    return {"proof": PROOF.model_copy(update=changes)}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        (proof(step_times_s=(0.0,)), "proof: found step times of [0.0] s; expected"),
        (proof(step_times_s=(0.1, -0.1)), "proof: found step times"),
        (proof(step_times_s=(float("nan"),)), "proof: found step times"),
        (proof(startup_s=float("inf")), "proof.startup_s: found inf"),
        ({"gain": Ratio(value=1.0, low=2.0, high=3.0)}, "gain: found 1 (2 to 3)"),
        ({"plan": OWN.replace(accumulation_steps=2**40)}, "plan.values: found accumulation_steps: 1099511627776"),
        ({"plan": OWN.replace(micro_batch_size=True)}, "plan.values: found micro_batch_size: True"),
    ],
)
def test_what_none_can_have_found_is_named(changes: dict[str, Any], place: str) -> None:
    (problem,) = problems(RECORD.model_copy(update=changes))
    assert problem.startswith(place)
    assert "expected" in problem


@pytest.mark.parametrize(
    "place",
    [("gain", "low"), ("gain", "high"), ("duration_s",), ("rate_per_s",), ("baseline", "outcome", "duration_s")],
    ids=lambda place: place[-1],
)
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, 1e308])
def test_a_figure_that_no_report_can_compute_with_is_refused(
    tmp_path: Path, place: tuple[str, ...], value: float
) -> None:
    path = changed(tmp_path / "plan.yaml", *place, value=value)
    with pytest.raises(PlanFileError, match=rf"{place[-1]}: found .*expected"):
        load(path)
