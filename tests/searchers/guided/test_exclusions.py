"""Which plans a failure condemns: those with the one value that must be at fault, or with all that may be."""

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.feasibility.plan_features import points_of
from autofit.searchers.guided.exclusions import exclusions

PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32")
FORMAT = Knob(name="format", values=("default", "channels_last"), default="default")
KNOBS = (PRECISION, FORMAT)
PLANS = [
    Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "precision": p, "format": f})
    for p in PRECISION.values for f in FORMAT.values for size in (8, 16)
]  # fmt: skip
POINTS = points_of(KNOBS, PLANS, 8)
FAILED = Outcome(status=Status.NUMERIC, reason="not finite")


def place(precision: str, form: str, size: int = 8) -> int:
    return next(
        i for i, plan in enumerate(PLANS)
        if (plan.values["precision"], plan.values["format"], plan.micro_batch_size) == (precision, form, size)
    )  # fmt: skip


def found(dead: list[tuple[str, str]], alive: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the combinations that are excluded."""
    outcomes = {place(*each): FAILED for each in dead}
    each = exclusions(KNOBS, POINTS, outcomes, [place(*one) for one in alive])
    mask = np.any([one.mask for one in each], axis=0) if each else np.zeros(len(PLANS), bool)
    return {(str(PLANS[i].values["precision"]), str(PLANS[i].values["format"])) for i in np.flatnonzero(mask)}


@pytest.mark.parametrize(
    ("dead", "alive", "expected"),
    [
        ([], [("fp32", "default")], set()),
        # One value is suspect: all that have it are excluded.
        ([("bf16", "default")], [("fp32", "default")], {("bf16", "default"), ("bf16", "channels_last")}),
        # Either may be at fault: only both together are.
        ([("bf16", "channels_last")], [("fp32", "default")], {("bf16", "channels_last")}),
        # The other one ran: it is innocent.
        (
            [("bf16", "channels_last")],
            [("fp32", "default"), ("fp32", "channels_last")],
            {("bf16", "default"), ("bf16", "channels_last")},
        ),
        # Both ran, each alone: they fail only together.
        (
            [("bf16", "channels_last")],
            [("fp32", "channels_last"), ("bf16", "default")],
            {("bf16", "channels_last")},
        ),
        # The user's own fails: nothing is said of other values.
        ([("fp32", "default")], [("bf16", "default")], {("fp32", "default")}),
    ],
)
def test_which_combinations_are_excluded(
    dead: list[tuple[str, str]], alive: list[tuple[str, str]], expected: set[tuple[str, str]]
) -> None:
    assert found(dead, alive) == expected


def test_the_reason_names_what_is_suspect() -> None:
    outcomes = {place("bf16", "default"): FAILED}
    (one,) = exclusions(KNOBS, POINTS, outcomes, [place("fp32", "default")])
    assert one.reason == "precision=bf16 failed: numeric, not finite"


def test_what_does_not_fit_condemns_nothing() -> None:
    outcomes = {place("bf16", "default"): Outcome(status=Status.OUT_OF_MEMORY, reason="full")}
    assert exclusions(KNOBS, POINTS, outcomes, [place("fp32", "default")]) == []
