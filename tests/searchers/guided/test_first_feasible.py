"""What is run while nothing has fitted: smaller, then leaner, then no more."""

from dataclasses import replace

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, divisors
from autofit.searchers.base import Problem
from autofit.searchers.guided.guided import MAX_TRIED, first_feasible
from tests.fakes import problem_of, small_bench

FULL = Outcome(status=Status.OUT_OF_MEMORY, reason="full")


def sequence(given: Problem, outcome: Outcome, most: int = 60) -> list[Plan]:
    known: dict[Plan, Outcome] = {}
    while (plan := first_feasible(given, known)) is not None and len(known) < most:
        assert plan not in known
        known[plan] = outcome
    return list(known)


def test_the_users_own_plan_is_halved_then_each_change_alone_then_many() -> None:
    bench = small_bench()
    plans = sequence(problem_of(bench), FULL)
    own = bench.space.baseline
    smallest = bench.space.sizes[0]
    halved = [plan.micro_batch_size for plan in plans if plan.combination == own.combination]
    assert plans[0] == own
    assert halved == sorted(halved, reverse=True)
    assert halved[-1] == smallest
    others = plans[len(halved) :]
    assert {plan.micro_batch_size for plan in others} == {smallest}
    changes = [len(plan.combination.changes_from(own.combination)) for plan in others]
    singles = sum(len(knob.values) - 1 for knob in bench.space.facts.knobs)
    assert changes[:singles] == [1] * singles
    assert len(changes) == singles + MAX_TRIED
    assert changes[singles] == len(bench.space.facts.knobs)


def test_a_combination_that_fails_by_itself_is_not_halved() -> None:
    bench = small_bench()
    plans = sequence(problem_of(bench), Outcome(status=Status.NUMERIC, reason="not finite"), most=2)
    assert plans[0] == bench.space.baseline
    assert plans[1].combination != bench.space.baseline.combination


def test_where_the_users_code_raises_at_smaller_sizes_its_own_size_is_tried_with_other_values() -> None:
    bench = small_bench()
    own, raised = bench.space.baseline, Outcome(status=Status.USER_ERROR, reason="shape '[8]' is invalid")
    smaller = bench.space.at(own.combination, 4)
    plan = first_feasible(problem_of(bench), {own: FULL, smaller: raised})
    assert plan is not None
    assert plan.micro_batch_size == own.micro_batch_size
    assert plan.combination != own.combination


def test_a_crash_is_no_reason_to_give_up_the_combination() -> None:
    bench = small_bench()
    plans = sequence(problem_of(bench), Outcome(status=Status.CRASHED, reason="gone"), most=2)
    assert plans[1].combination == bench.space.baseline.combination
    assert plans[1].micro_batch_size < plans[0].micro_batch_size


def test_with_estimates_the_largest_that_fits_surely_comes_first() -> None:
    bench = small_bench()

    def estimate(plan: Plan) -> Estimate:
        value = bench.budget_bytes * plan.micro_batch_size // 5
        return Estimate(value_bytes=value, lower_bytes=value, upper_bytes=value)

    plan = first_feasible(problem_of(bench, estimate), {})
    assert plan is not None
    assert plan.micro_batch_size == max(size for size in bench.space.sizes if size <= 5)


def test_a_change_that_does_not_admit_accumulation_is_proposed_without_it() -> None:
    bench = small_bench()
    changed = [
        knob.model_copy(update={"one_pass": knob.values[1:]}) if number == 0 else knob
        for number, knob in enumerate(bench.space.facts.knobs)
    ]
    facts = bench.space.facts.model_copy(
        update={
            "knobs": tuple(changed),
            "global_batch_size": bench.space.sizes[-1],
            "sizes": divisors(bench.space.sizes[-1]),
            "baseline": bench.space.baseline.replace(micro_batch_size=bench.space.sizes[-1]),
        }
    )
    given = problem_of(replace(bench, space=SearchSpace(facts)))
    plans = sequence(given, FULL)
    assert all(given.space.violation(plan) is None for plan in plans)
    first = changed[0]
    whole = {plan.micro_batch_size for plan in plans if plan.values[first.name] in first.one_pass}
    assert whole == {bench.space.sizes[-1]}
    assert bench.space.sizes[0] in {plan.micro_batch_size for plan in plans}
