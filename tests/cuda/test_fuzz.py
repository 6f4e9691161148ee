"""A dozen seeds of fuzz.py, and that a run which crashes or hangs is one failed run."""

from pathlib import Path

import pytest

from tests.cuda import fuzz
from tests.cuda.faults import FAULTS

pytestmark = pytest.mark.phantom

CRASHES = """
import os, sys
if sys.argv[2].startswith("0"):
    print("{}", flush=True)
os.abort()
"""
HANGS = "import time\ntime.sleep(60)\n"


@pytest.mark.parametrize("first", [1000, 1006])
def test_whole_searches_keep_their_promises(first: int) -> None:
    found = list(fuzz.outcomes(list(range(first, first + 6)), limit_s=120))
    assert [told["seed"] for told in found] == list(range(first, first + 6))
    assert [told["problem"] for told in found if told["problem"]] == []


def test_seeds_draw_each_model_fault_and_kind_of_budget() -> None:
    cases = [fuzz.Case.draw(seed) for seed in range(200)]
    assert {case.model for case in cases} == set(fuzz.MODELS)
    assert {case.optimizer for case in cases} == set(fuzz.OPTIMIZERS)
    assert {case.fault for case in cases} == {"", *FAULTS} - {"abort"}
    assert {type(case.budget) for case in cases} == {float, str, type(None)}
    assert cases == [fuzz.Case.draw(seed) for seed in range(200)]


@pytest.mark.parametrize(("script", "why"), [(CRASHES, "ended with -6"), (HANGS, "hung for 1 s")])
def test_a_process_that_crashes_or_hangs_costs_one_run(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(script)
    monkeypatch.setattr(fuzz, "__file__", str(child))
    found = list(fuzz.outcomes([0, 1], limit_s=1 if script == HANGS else 30))
    assert len(found) == 2
    assert why in found[1]["problem"]
