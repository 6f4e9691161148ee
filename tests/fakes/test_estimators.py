"""The estimator with a fixed answer."""

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from tests.fakes import Fixed

ESTIMATE = Estimate(value_bytes=1)


def test_answer_is_the_same_for_every_plan() -> None:
    assert {Fixed(ESTIMATE).estimate(Plan(values={"a": value})) for value in (1, 2)} == {ESTIMATE}


def test_plans_that_are_left_out_have_no_estimate() -> None:
    fixed = Fixed(ESTIMATE, only=lambda plan: plan.values["a"] == 1)
    assert fixed.estimate(Plan(values={"a": 1})) == ESTIMATE
    assert fixed.estimate(Plan(values={"a": 2})) is None
