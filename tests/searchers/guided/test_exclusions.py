"""Which plans a failure condemns: those with the one value that must be at fault, or with all that may be."""

from itertools import product

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.outcome import LAST_BATCH, Outcome, Status
from autofit.core.plan import Plan
from autofit.searchers.guided.exclusions import MAX_AT_FAULT, chances_to_run, exclusions
from tests.feasibility.points import points_of

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


MANY = tuple(Knob(name=name, values=("off", "a", "b"), default="off") for name in "stuv")
ALL = [
    Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, **dict(zip("stuv", values, strict=True))})
    for values in product(("off", "a", "b"), repeat=4)
]
EVERY = points_of(MANY, ALL, 8)


def at(**changes: str) -> int:
    return ALL.index(ALL[0].replace(**changes))


def chance(dead: list[dict[str, str]], alive: list[dict[str, str]], **changes: str) -> float:
    """Returns the probability that a plan runs."""
    outcomes = {at(**each): FAILED for each in dead}
    return float(chances_to_run(EVERY, outcomes, [at(), *(at(**each) for each in alive)])[at(**changes)])


def test_each_possible_cause_of_a_failure_is_equally_likely() -> None:
    dead = [{"s": "a", "t": "a", "u": "a"}]
    assert chance(dead, [], v="a") == 1.0
    assert chance(dead, [], s="b") == 1.0
    assert chance(dead, [], s="a") == pytest.approx(2 / 3)
    assert chance(dead, [], s="a", t="a") == pytest.approx(1 / 3)
    assert chance(dead, [], s="a", t="a", u="a") == pytest.approx(0.0)


def test_a_value_that_ran_elsewhere_is_no_cause() -> None:
    assert chance([{"s": "a", "t": "a"}], [{"s": "a", "v": "b"}], s="a") == 1.0
    assert chance([{"s": "a", "t": "a"}], [{"s": "a", "v": "b"}], t="a", v="a") == 0.0


def test_a_value_that_two_failures_share_is_the_cause_and_others_are_cleared() -> None:
    dead = [{"s": "a", "t": "a"}, {"s": "a", "u": "b"}]
    assert chance(dead, [], s="a", v="a") == 0.0
    assert chance(dead, [], t="a") == chance(dead, [], u="b") == 1.0


def test_failures_without_a_common_value_have_a_cause_each() -> None:
    dead = [{"s": "a"}, {"t": "a", "u": "a"}]
    assert chance(dead, [], s="a") == 0.0
    assert chance(dead, [], t="a") == chance(dead, [], u="a") == pytest.approx(0.5)
    assert chance(dead, [], t="a", u="a") == pytest.approx(0.0)


def test_more_causes_than_the_limit_explain_nothing() -> None:
    dead = [{name: "a"} for name in "stuv"]
    assert len(dead) > MAX_AT_FAULT
    assert chance(dead, [], s="a") == 1.0
    assert any(one.mask[at(s="a")] for one in exclusions(MANY, EVERY, {at(**each): FAILED for each in dead}, [at()]))


SIZED = [
    Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "precision": p, "format": "default"})
    for p in PRECISION.values for size in (8, 2, 4, 16, 32)
]  # fmt: skip
OF_SIZES = points_of(KNOBS, SIZED, 8)
RAISED = Outcome(status=Status.USER_ERROR, reason="shape '[8]' is invalid")
Tried = tuple[str, int]


def sized(precision: str, size: int) -> int:
    return next(i for i, each in enumerate(SIZED) if tuple(each.values.values())[::2] == (size, precision))


def excluded(dead: list[Tried], alive: list[Tried], outcome: Outcome = RAISED) -> set[Tried]:
    """Returns the precisions and sizes that are excluded."""
    outcomes = {sized(*each): outcome for each in dead}
    found = [one.mask for one in exclusions(KNOBS, OF_SIZES, outcomes, [sized(*each) for each in alive])]
    mask = np.any(found, axis=0)
    return {(p, s) for p in ("fp32", "bf16") for s in (2, 4, 8, 16, 32) if mask[sized(p, s)]}


@pytest.mark.parametrize(
    ("dead", "alive", "expected"),
    [
        # The user's own size runs: other sizes from there on fail whatever the other knobs are.
        ([("fp32", 16)], [("fp32", 8)], {(p, s) for p in ("fp32", "bf16") for s in (16, 32)}),
        ([("fp32", 4)], [("fp32", 8)], {(p, s) for p in ("fp32", "bf16") for s in (2, 4)}),
        # The value or the size: only both together.
        ([("bf16", 16)], [("fp32", 8)], {("bf16", 16), ("bf16", 32)}),
        # The value runs at the user's size: it is the size.
        ([("bf16", 16)], [("fp32", 8), ("bf16", 8)], {(p, s) for p in ("fp32", "bf16") for s in (16, 32)}),
        # The size runs without the value: it is the value.
        ([("bf16", 16)], [("fp32", 8), ("fp32", 16)], {("bf16", s) for s in (2, 4, 8, 16, 32)}),
        # A size beyond it runs: it is that size alone.
        ([("fp32", 16)], [("fp32", 8), ("fp32", 32)], {("fp32", 16), ("bf16", 16)}),
        # Whether the user's own size runs is not known.
        ([("fp32", 4)], [("bf16", 2)], {("fp32", 4), ("bf16", 4)}),
        # At the user's own size, it is the value.
        ([("bf16", 8)], [("fp32", 8)], {("bf16", s) for s in (2, 4, 8, 16, 32)}),
    ],
)
def test_an_error_of_the_users_code_may_be_about_the_size(
    dead: list[Tried], alive: list[Tried], expected: set[Tried]
) -> None:
    assert excluded(dead, alive) == expected


def test_other_failures_are_not_about_the_size() -> None:
    assert excluded([("bf16", 16)], [("fp32", 8)], FAILED) == {("bf16", s) for s in (2, 4, 8, 16, 32)}


def test_an_incomplete_last_batch_of_an_epoch_rules_out_its_size_alone() -> None:
    failed = RAISED.model_copy(update={"phase": LAST_BATCH})
    assert excluded([("fp32", 16)], [("fp32", 8)], failed) == {("fp32", 16), ("bf16", 16)}


def test_the_reason_names_the_sizes() -> None:
    (one,) = exclusions(KNOBS, OF_SIZES, {sized("bf16", 4): RAISED}, [sized("fp32", 8)])
    assert one.reason.startswith("precision=bf16 0.5 times the baseline's micro batch or less failed: user error")


def test_a_value_that_failed_at_a_size_that_fails_without_it_is_cleared() -> None:
    alive = [sized("fp32", 8)]
    first = chances_to_run(OF_SIZES, {sized("bf16", 32): RAISED}, alive)
    assert first[sized("bf16", 8)] == first[sized("fp32", 32)] == pytest.approx(0.5)
    then = chances_to_run(OF_SIZES, {sized("bf16", 32): RAISED, sized("fp32", 16): RAISED}, alive)
    assert then[sized("bf16", 8)] == 1.0
    assert then[sized("fp32", 32)] == 0.0
