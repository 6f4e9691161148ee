"""A search with pinned knobs: the baseline is measured for comparison, and only plans with the values are chosen."""

import pytest

from autofit import searchers
from autofit.core.budget import Budget
from autofit.core.errors import BudgetSpent, NothingFits, WorkloadError
from autofit.core.objective import Objective
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.search.no_answer import nothing_proven
from autofit.search.search import run
from autofit.searchers.base import Searcher
from tests.fakes import FakeBench, MemoryLog, always, tuning_of
from tests.search.listed import calm, only
from tests.search.test_checks import Gate


def pinned(**values: str | int) -> FakeBench:
    bench = calm()
    bench.space = SearchSpace(bench.space.facts.model_copy(update={"pinned": values}))
    return bench


def test_only_plans_with_the_values_are_run_beside_the_baseline_and_one_is_recommended() -> None:
    bench = pinned(precision="tf32", micro_batch_size=16)
    findings = run(tuning_of(bench))
    ran = {plan for plan, _ in bench.runs} - {bench.space.baseline}
    assert {(plan.values["precision"], plan.micro_batch_size) for plan in ran} == {("tf32", 16)}
    assert findings.plan.values["precision"] == "tf32"
    assert findings.baseline.outcome.measured
    assert findings.gain is not None


def test_a_plan_that_is_slower_than_the_baseline_is_recommended_with_its_loss() -> None:
    bench = pinned(micro_batch_size=4, precision="tf32")
    findings = run(tuning_of(bench))
    assert (findings.plan.micro_batch_size, findings.plan.values["precision"]) == (4, "tf32")
    slower = pinned(micro_batch_size=4)
    slower.space = SearchSpace(slower.space.facts.model_copy(update={"pinned": {"micro_batch_size": 4}, "knobs": ()}))
    slower.space = SearchSpace(
        slower.space.facts.model_copy(
            update={"baseline": slower.space.at(Plan(), slower.space.baseline.micro_batch_size)}
        )
    )
    findings = run(tuning_of(slower))
    assert findings.plan.micro_batch_size == 4
    assert findings.gain is not None
    assert findings.gain.value < 1
    assert findings.gain.pairs > 0, "the faster baseline, which may not win, has not kept it from the race"


def test_a_pinned_value_is_run_though_its_warm_up_cannot_pay_and_may_not_end_in_time() -> None:
    bench = pinned(precision="tf32")
    knobs = tuple(
        knob.model_copy(update={"warm_up_s": (0.0, 1e6, 0.0), "ceiling": (1.0, 1.01, 1.0)})
        if knob.name == "precision" else knob
        for knob in bench.space.facts.knobs
    )  # fmt: skip
    bench.space = SearchSpace(bench.space.facts.model_copy(update={"knobs": knobs}))
    budget = Budget(memory_bytes=bench.budget_bytes, time_s=1000.0)
    findings = run(tuning_of(bench, objective=Objective(planned_samples=1000), budget=budget))
    assert findings.plan.values["precision"] == "tf32"


OTHERS = [
    pytest.param(member, id=member.name, marks=[pytest.mark.slow] if member.name == "gp" else [])
    for member in searchers.members()[1:]
]


@pytest.mark.parametrize("searcher", OTHERS)
def test_every_searcher_keeps_to_the_values(searcher: type[Searcher]) -> None:
    bench = pinned(precision="tf32")
    budget = Budget(memory_bytes=bench.budget_bytes, max_trials=12)
    assert run(tuning_of(bench, searcher=searcher, budget=budget)).plan.values["precision"] == "tf32"
    ran = {plan for plan, _ in bench.runs} - {bench.space.baseline}
    assert {plan.values["precision"] for plan in ran} == {"tf32"}


@pytest.mark.parametrize(("size", "said"), [(16, "Tried: micro batch 16"), (64, "none is likely to fit")])
def test_when_none_of_them_fits_the_message_names_the_pins(size: int, said: str) -> None:
    bench = pinned(precision="bf16", micro_batch_size=size)
    for plan in bench.space.plans():
        if plan != bench.space.baseline:
            bench.faults[plan.key] = always(Status.OUT_OF_MEMORY, "tried to allocate 3 GiB")
    with pytest.raises(NothingFits) as error:
        run(tuning_of(bench))
    assert str(error.value).startswith(f"no plan with precision=bf16, micro_batch_size={size} could be measured")
    assert said in str(error.value)


def test_when_the_trials_are_spent_before_one_ran_more_are_asked_for() -> None:
    bench = pinned(precision="bf16")
    with pytest.raises(BudgetSpent, match=r"no plan with precision=bf16 .* within the limits on time and trials"):
        run(tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, max_trials=1)))


def test_when_they_fail_for_another_reason_memory_is_not_blamed() -> None:
    bench, log = pinned(precision="bf16"), MemoryLog()
    for plan in bench.space.plans():
        if plan != bench.space.baseline:
            bench.faults[plan.key] = always(Status.REJECTED, "no such kernel")
    with pytest.raises(WorkloadError, match="no such kernel"):
        run(tuning_of(bench, log))


def test_when_none_of_them_ran_although_they_are_likely_to_fit_memory_is_not_blamed() -> None:
    """As with slow steps: a plan that does not end in time is not proposed."""
    bench = pinned(precision="tf32")
    with pytest.raises(BudgetSpent) as error:
        run(only(bench, bench.space.baseline))
    assert "the search ended before one ran, nothing left that was worth a probe. Give more time" in str(error.value)
    assert "memory" not in str(error.value)


def test_when_only_a_check_was_missing_no_plan_is_said_to_be_untried() -> None:
    text = str(nothing_proven([], calm().space.baseline, 2, Budget(memory_bytes=1)))
    assert "before one was proven and checked. Give more time" in text
    assert "Nothing was tried" not in text


def test_when_a_check_refuses_what_ran_the_message_says_so() -> None:
    bench = pinned(precision="bf16")
    with pytest.raises(WorkloadError) as error:
        run(tuning_of(bench, check=Gate(bench)))
    said = (
        "no plan with precision=bf16 passed the check of this model's gradient: precision=bf16: far. Pin other values."
    )
    assert str(error.value) == said
