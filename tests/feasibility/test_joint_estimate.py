"""What several estimators say together, computed once until one of them learns more."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators.base import Estimator
from autofit.feasibility import Feasibility
from tests.fakes import Fixed, small_bench

BENCH = small_bench()
PLAN = BENCH.space.baseline


def far_too_large(more: int) -> Estimate:
    return Estimate(value_bytes=2**40 + more)


class Learner(Estimator):
    """Estimates far too many bytes, and one more each time that it learned; counts how often it is asked."""

    def __init__(self, fails: bool = False) -> None:
        self.learned = self.asked = 0
        self._fails = fails

    def _learn(self) -> None:
        self.learned += 1
        if self._fails:
            raise OSError("cut off")

    def tell(self, trial: Trial) -> None:
        self._learn()

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        self._learn()

    def refine_all(self, plans: Sequence[Plan]) -> None:
        self._learn()

    def estimate(self, plan: Plan) -> Estimate | None:
        self.asked += 1
        return far_too_large(self.learned)


def joint_of(estimators: Sequence[Estimator]) -> Feasibility:
    return Feasibility(BENCH.space, BENCH.budget_bytes, estimators)


def together(*opinions: Mapping[str, int | bool | str]) -> dict[str, object]:
    found = joint_of([Fixed(Estimate.model_validate(each)) for each in opinions]).estimate(PLAN)
    assert found is not None
    return found.model_dump(exclude_defaults=True)


def told(joint: Feasibility) -> None:
    outcome = Outcome(status=Status.OUT_OF_MEMORY, reason="CUDA out of memory")
    trial = Trial(number=0, plan=PLAN, purpose=Purpose.PROBE, outcome=outcome)
    joint.tell(trial)


def refined(joint: Feasibility) -> None:
    joint.look(PLAN)


def all_refined(joint: Feasibility) -> None:
    joint._teach(lambda each: each.refine_all([PLAN]))


@pytest.mark.parametrize("learn", [told, refined, all_refined])
def test_estimators_are_asked_again_once_they_learned(learn: Callable[[Feasibility], None]) -> None:
    learner = Learner()
    joint = joint_of([learner])
    assert [joint.estimate(PLAN), joint.estimate(PLAN)] == [far_too_large(0)] * 2
    assert learner.asked == 1
    learn(joint)
    assert learner.learned == 1
    assert joint.estimate(PLAN) == far_too_large(1)


@pytest.mark.parametrize("learn", [told, refined, all_refined])
def test_they_are_asked_again_after_they_failed_while_learning(learn: Callable[[Feasibility], None]) -> None:
    joint = joint_of([Learner(fails=True)])
    joint.estimate(PLAN)
    with pytest.raises(OSError, match="cut off"):
        learn(joint)
    assert joint.estimate(PLAN) == far_too_large(1)


def test_the_bounds_are_the_tightest_and_the_value_the_first_that_rests_on_one() -> None:
    guess, wide, narrow = {"value_bytes": 500}, {"value_bytes": 110, "lower_bytes": 80}, {"value_bytes": 95}
    assert together(guess, wide | {"upper_bytes": 130}, narrow | {"lower_bytes": 90, "upper_bytes": 120}) == {
        "value_bytes": 110, "lower_bytes": 90, "upper_bytes": 120,
    }  # fmt: skip


def test_a_value_outside_the_bounds_of_others_is_moved_and_what_was_said_is_kept() -> None:
    bounded = {"value_bytes": 95, "lower_bytes": 90, "upper_bytes": 99}
    assert together({"value_bytes": 120, "lower_bytes": 70, "basis": "first"}, bounded) == {
        "value_bytes": 99, "lower_bytes": 90, "upper_bytes": 99, "said_bytes": 120, "basis": "first",
    }  # fmt: skip
    assert together({"value_bytes": 60, "lower_bytes": 50, "basis": "first"}, bounded)["said_bytes"] == 60


def test_a_worst_case_is_believed_only_where_nothing_else_is_said() -> None:
    worst = {"value_bytes": 300, "upper_bytes": 300, "worst_case": True}
    assert together(worst, {"value_bytes": 100, "lower_bytes": 90})["value_bytes"] == 100
    assert together(worst, {"value_bytes": 100})["value_bytes"] == 300


def test_no_opinion_is_none() -> None:
    assert joint_of([]).estimate(PLAN) is None
