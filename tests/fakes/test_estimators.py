"""The estimators with a fixed answer, and with a function for one."""

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from tests.fakes import Estimates, Fixed

ESTIMATE = Estimate(value_bytes=1)


def test_answer_is_the_same_for_every_plan() -> None:
    assert {Fixed(ESTIMATE).estimate(Plan(values={"a": value})) for value in (1, 2)} == {ESTIMATE}


def test_plans_that_are_left_out_have_no_estimate() -> None:
    fixed = Fixed(ESTIMATE, only=lambda plan: plan.values["a"] == 1)
    assert fixed.estimate(Plan(values={"a": 1})) == ESTIMATE
    assert fixed.estimate(Plan(values={"a": 2})) is None


def test_a_function_is_asked_each_time() -> None:
    values = iter((1, 2))
    asked = Estimates(lambda plan: Estimate(value_bytes=next(values)))
    found = [asked.estimate(Plan(values={"a": 1})) for _ in range(2)]
    assert [each and each.value_bytes for each in found] == [1, 2]
