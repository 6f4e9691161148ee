"""The default searcher against fake devices whose truth is known, mostly without anything that estimates memory."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np
import pytest

from autofit import estimators
from autofit.core.budget import Budget, Clock
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.estimators.base import Estimator
from autofit.feasibility import Feasibility
from autofit.feasibility.surrogate import Belief
from autofit.search.search import run
from autofit.searchers.base import Searcher
from autofit.searchers.guided.guided import Guided
from autofit.searchers.guided.throughput import Throughput
from scripts.bench.search.replay import TableBench, TableEstimator
from scripts.bench.search.tables import synthetic
from tests.fakes import (
    MIB,
    OPTIMIZER,
    PRECISION,
    Estimates,
    FakeBench,
    MemoryLog,
    always,
    problem_of,
    random_bench,
    small_bench,
    space_of,
    tell,
    tuning_of,
)


def search(searcher: Searcher, bench: FakeBench, most: int = 60) -> list[Trial]:
    """Asks and tells until the searcher has enough."""
    trials: list[Trial] = []
    while (plan := searcher.ask()) is not None:
        assert len(trials) < most, "the searcher does not come to an end"
        trials.append(Trial(number=len(trials), plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
        tell(searcher, trials[-1])
    return trials


def best_of(trials: list[Trial], bench: FakeBench) -> Plan:
    return max((t.plan for t in trials if t.outcome.measured), key=bench.samples_per_s)


MakesEstimators = Callable[[FakeBench], list[Estimator]]


def over_random_problems(seeds: range, estimators_of: MakesEstimators) -> tuple[list[float], list[int], list[int]]:
    """Returns regrets, probes and plans that did not fit, of a search on each problem that something fits."""
    regrets, probes, misfits = [], [], []
    for seed in seeds:
        bench = random_bench(seed)
        if not bench.feasible():
            continue
        findings = run(tuning_of(bench, estimators=[*estimators_of(bench), estimators.Measured()]))
        assert bench.fits(findings.plan), f"problem {seed}: the plan returned is over the budget"
        assert len(bench.probes()) == len({plan.key for plan in bench.probes()}), f"problem {seed}: asked twice"
        regrets.append(bench.regret(findings.plan))
        probes.append(len(bench.probes()))
        misfits.append(sum(t.outcome.status.does_not_fit for t in findings.trials))
    return regrets, probes, misfits


@pytest.mark.slow
def test_regret_and_probes_over_random_problems() -> None:
    regrets, probes, misfits = over_random_problems(range(40), lambda bench: [])
    assert len(regrets) >= 30
    assert mean(regrets) <= 0.03
    assert max(regrets) <= 0.2
    assert median(probes) <= 18
    assert max(probes) <= 25
    assert mean(misfits) <= 1.5, "an out-of-memory is the exception, not the method"


@pytest.mark.slow
def test_regret_and_probes_over_random_problems_where_memory_is_estimated_as_by_traces() -> None:
    def traces(bench: FakeBench) -> list[Estimator]:
        peaks = {plan.key: bench.peak_bytes(plan) for plan in bench.space.plans()}
        return [TableEstimator(peaks, error_ratio=0.04, at_once=False)]

    regrets, probes, misfits = over_random_problems(range(200, 230), traces)
    assert len(regrets) >= 24
    assert mean(regrets) <= 0.02
    assert median(probes) <= 12
    assert mean(misfits) <= 0.3


def test_where_estimates_were_too_high_what_is_estimated_above_the_budget_runs_even_if_cautious() -> None:
    bench = small_bench()
    best = max(filter(bench.fits, bench.space.plans()), key=bench.samples_per_s)
    bench.budget_bytes = round(bench.peak_bytes(best) / 0.97)
    peaks = {plan.key: bench.peak_bytes(plan) for plan in bench.space.plans()}
    findings = run(tuning_of(bench, estimators=[TableEstimator(peaks, factor=1.1, error_ratio=0.15)], cautious=True))
    assert best in bench.probes()
    assert bench.regret(findings.plan) < 0.01
    assert all(bench.fits(plan) for plan in bench.probes())


@pytest.mark.parametrize("seed", [0, 8, 33])
def test_a_search_is_the_same_on_a_processor_that_rounds_differently(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    believe, chance = Throughput.believe, np.random.default_rng(0)

    def rounded_differently(self: Throughput, *given: Any) -> Belief:
        found = believe(self, *given)
        return Belief(found.mean * (1 + 1e-14 * chance.standard_normal(len(found.mean))), found.deviation)

    first, again = random_bench(seed), random_bench(seed)
    run(tuning_of(first))
    monkeypatch.setattr(Throughput, "believe", rounded_differently)
    run(tuning_of(again))
    assert again.probes() == first.probes()


def test_without_estimates_a_search_runs_out_of_memory_three_times_at_most() -> None:
    made = synthetic("static_memory")
    device = TableBench(made.table, seed=13)
    fields: dict[str, Any] = {
        "space": SearchSpace(made.table.space),
        "evaluate": device.evaluate,
        "budget": Budget(memory_bytes=made.table.budget.memory_bytes),
        "clock": Clock(device.time),
        "seed": 13,
    }
    findings = run(tuning_of(small_bench(), estimators=[estimators.Measured()], **fields))
    assert findings.counts[Status.OUT_OF_MEMORY.value] == 3, "what takes room at any size is met, and is not met again"


def test_the_users_own_plan_comes_first_where_nothing_is_known_of_its_memory() -> None:
    bench = small_bench()
    assert Guided(problem_of(bench)).ask() == bench.space.baseline


def test_the_largest_size_that_is_estimated_to_fit_comes_first_where_the_users_own_does_not() -> None:
    bench = small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 64), budget_bytes=1000 * MIB)

    def estimate(plan: Plan) -> Estimate:
        peak = bench.peak_bytes(plan)
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak)

    first = Guided(problem_of(bench, estimate)).ask()
    assert first is not None
    assert first.combination == bench.space.baseline.combination
    sizes = [s for s in bench.space.sizes if bench.fits(bench.space.at(first.combination, s))]
    assert first.micro_batch_size == max(sizes)


def test_the_global_batch_is_kept_exactly() -> None:
    bench = small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8, global_batch_size=64))
    trials = search(Guided(problem_of(bench)), bench)
    assert {t.plan.global_batch_size for t in trials} == {64}
    assert {t.plan.micro_batch_size for t in trials} > {8}


def test_many_combinations_are_not_enumerated_and_winning_values_are_joined() -> None:
    bench = small_bench()
    trials = search(Guided(problem_of(bench)), bench)
    assert len(trials) <= 22
    best = best_of(trials, bench)
    assert best.values["precision"] == "bf16"
    assert best.values["optimizer"] == "fused"
    assert bench.regret(best) < 0.05


def test_a_saver_is_taken_up_only_where_memory_is_short() -> None:
    short = small_bench(sample_mib=200.0, launch_s=0.05, budget_bytes=2400 * MIB)
    rich = replace(short, budget_bytes=200_000 * MIB, runs=[])
    trials = {}
    for name, bench in (("short", short), ("rich", rich)):
        findings = run(tuning_of(bench))
        trials[name] = findings.plan
        assert bench.regret(findings.plan) < 0.06
    assert trials["rich"].values["checkpoint"] == "none"
    assert trials["short"].values["checkpoint"] != "none"


@pytest.mark.parametrize("status", [Status.NUMERIC, Status.REJECTED, Status.USER_ERROR, Status.NO_STEP])
def test_a_combination_that_fails_by_itself_is_dropped(status: Status) -> None:
    bench = small_bench()
    for combination in bench.space.combinations():
        if combination.values["precision"] == "bf16":
            for size in bench.space.sizes:
                bench.faults[bench.space.at(combination, size).key] = always(status)
    trials = search(Guided(problem_of(bench)), bench)
    assert sum(t.outcome.status is status for t in trials) <= 2, "after two plans it is the value that they share"
    assert best_of(trials, bench).values["precision"] == "tf32"


@pytest.mark.parametrize("status", [Status.LAUNCH_LIMIT, Status.CRASHED, Status.TIMED_OUT])
def test_one_failing_size_does_not_drop_its_combination(status: Status) -> None:
    bench = small_bench(budget_bytes=100_000 * MIB)
    for combination in bench.space.combinations():
        bench.faults[bench.space.at(combination, 32).key] = always(status)
    assert run(tuning_of(bench)).plan.micro_batch_size == 64


def test_the_users_own_size_does_not_fit() -> None:
    bench = small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 64), budget_bytes=1000 * MIB)
    trials = search(Guided(problem_of(bench)), bench)
    assert bench.regret(best_of(trials, bench)) < 0.05


def test_another_combination_is_found_where_the_users_own_fits_at_no_size() -> None:
    bench = small_bench(sample_mib=100.0, budget_bytes=800 * MIB)
    assert not bench.fits(bench.space.at(bench.space.baseline.combination, 4))
    findings = run(tuning_of(bench))
    assert bench.regret(findings.plan) < 0.1
    assert findings.gain is None


def test_the_search_ends_when_nothing_fits() -> None:
    bench = small_bench(budget_bytes=300 * MIB)
    trials = search(Guided(problem_of(bench)), bench)
    assert not any(t.outcome.measured for t in trials)
    assert len(trials) <= 25
    assert {t.plan.micro_batch_size for t in trials} == {8, 4}


def test_a_resumed_search_never_asks_what_is_known() -> None:
    bench = small_bench()
    whole = search(Guided(problem_of(bench)), bench)
    for known in (3, 7, len(whole)):
        again = Guided(problem_of(bench))
        for trial in whole[:known]:
            tell(again, trial.model_copy(update={"earlier": True}))
        asked = search(again, bench)
        assert not {t.plan.key for t in asked} & {t.plan.key for t in whole[:known]}
        assert bench.regret(best_of([*whole[:known], *asked], bench)) < 0.05


def test_the_same_outcomes_give_the_same_plans() -> None:
    runs = [search(Guided(problem_of(bench)), bench) for bench in (small_bench(), small_bench())]
    assert [t.plan for t in runs[0]] == [t.plan for t in runs[1]]


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.6])
def test_biased_estimates_cost_probes_not_the_answer(factor: float) -> None:
    bench = small_bench()

    def estimate(plan: Plan) -> Estimate:
        return Estimate(value_bytes=round(bench.peak_bytes(plan) * factor), upper_bytes=None, lower_bytes=None)

    findings = run(tuning_of(bench, estimators=[Estimates(estimate)]))
    assert bench.fits(findings.plan)
    assert bench.regret(findings.plan) < (0.12 if factor > 1 else 0.06)


def test_exact_estimates_avoid_every_failure() -> None:
    bench = small_bench(sample_mib=100.0)

    def estimate(plan: Plan) -> Estimate:
        peak = bench.peak_bytes(plan)
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak)

    trials = search(Guided(problem_of(bench, estimate)), bench)
    assert all(t.outcome.measured for t in trials)
    assert bench.regret(best_of(trials, bench)) < 0.06


@pytest.mark.fault("F33")
def test_fits_need_not_be_monotone() -> None:
    bench = small_bench(budget_bytes=100_000 * MIB)
    for combination in bench.space.combinations():
        bench.faults[bench.space.at(combination, 16).key] = always(Status.OUT_OF_MEMORY)
    findings = run(tuning_of(bench))
    assert bench.fits(findings.plan)
    assert findings.plan.micro_batch_size != 16


def test_interrupted_trials_and_blocks_say_nothing() -> None:
    bench = small_bench()
    searcher = Guided(problem_of(bench))
    first = searcher.ask()
    assert first is not None
    tell(searcher, Trial(number=0, plan=first, outcome=Outcome(status=Status.INTERRUPTED, reason="stopped")))
    tell(searcher, Trial(number=1, plan=first, outcome=bench.evaluate(first, Purpose.BLOCK), purpose=Purpose.BLOCK))
    assert searcher.ask() == first


def test_a_plan_of_which_a_look_told_nothing_is_run_only_where_it_is_likely_to_fit() -> None:
    """The baseline's combination is estimated, so others are looked at early; but nothing more is known of these."""
    bench = small_bench()
    own = bench.space.baseline.combination

    def estimate(plan: Plan) -> Estimate | None:
        peak = bench.peak_bytes(plan)
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak) if plan.combination == own else None

    looks = Counting(estimate)
    given = problem_of(bench, feasibility=Feasibility(bench.space, bench.budget_bytes, [looks]))
    trials = search(Guided(given), bench)
    assert max(Counter(looks.looked).values()) == 1
    assert len(looks.looked) > len({plan for plan in looks.looked if plan in {t.plan.key for t in trials}})
    assert len({t.plan.key for t in trials}) == len(trials)
    assert sum(t.outcome.status.does_not_fit for t in trials) <= 1
    assert bench.regret(best_of(trials, bench)) < 0.06


class Counting(Estimates):
    """Notes the plans that it is asked to refine."""

    def __init__(self, function: Callable[[Plan], Estimate | None]) -> None:
        super().__init__(function)
        self.looked: list[str] = []

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        self.looked.append(plan.key)


class Revealing(Counting):
    """Estimates the baseline's combination, and any plan that was looked at: above the budget."""

    def __init__(self, bench: FakeBench) -> None:
        super().__init__(self._reveal)
        self._bench = bench

    def _reveal(self, plan: Plan) -> Estimate | None:
        peak = self._bench.peak_bytes(plan)
        if plan.key in self.looked and plan.combination != self._bench.space.baseline.combination:
            peak = 2 * self._bench.budget_bytes
        elif plan.combination != self._bench.space.baseline.combination:
            return None
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak)


def declining(bench: FakeBench, **changes: Any) -> tuple[Guided, Revealing]:
    """Returns a searcher that knows the baseline's trial, and finds each other combination too large at a look."""
    eye = Revealing(bench)
    given = problem_of(bench, feasibility=Feasibility(bench.space, bench.budget_bytes, [eye]), **changes)
    searcher, own = Guided(given), bench.space.baseline
    tell(searcher, Trial(number=0, plan=own, outcome=bench.evaluate(own, Purpose.PROBE)))
    return searcher, eye


def test_a_plan_that_a_look_makes_unlikely_to_fit_is_not_asked_for() -> None:
    bench = small_bench()
    searcher, eye = declining(bench)
    plan = searcher.ask()
    assert eye.looked
    assert plan is None or plan.combination == bench.space.baseline.combination
    assert len(set(eye.looked)) == len(eye.looked)


def test_a_plan_that_was_declined_is_asked_for_without_another_look_once_it_is_the_best_again() -> None:
    bench = small_bench(space=space_of((replace_values(PRECISION, "float32", "bf16"),), (4, 8), 8))
    searcher, eye = declining(bench)
    while (plan := searcher.ask()) is not None:
        assert plan.combination == bench.space.baseline.combination
        tell(searcher, Trial(number=1, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
    looks = list(eye.looked)
    eye.function = lambda plan: Estimate(value_bytes=1, lower_bytes=1, upper_bytes=1)
    searcher.problem.feasibility.tell(Trial(number=2, plan=bench.space.baseline, outcome=ONE_MORE))
    plan = searcher.ask()
    assert plan is not None
    assert plan.key in looks
    assert eye.looked == looks


def replace_values(knob: Knob, *values: str) -> Knob:
    return Knob(name=knob.name, values=values, default=values[0])


ONE_MORE = Outcome(status=Status.INTERRUPTED, reason="stopped")
"""Says nothing of a plan, so that only the estimates change."""


@pytest.mark.parametrize("looks_left", [0, 1, 3])
def test_once_the_search_is_over_no_more_plans_are_looked_at(looks_left: int) -> None:
    bench, eyes = small_bench(), list[Revealing]()
    searcher, eye = declining(bench, is_over=lambda: len(eyes[0].looked) >= looks_left)
    eyes.append(eye)
    plan = searcher.ask()
    assert len(eye.looked) == looks_left
    assert (plan is None) is (looks_left > 0), "a plan that is asked for after the end is only named"


@pytest.mark.parametrize(("slower", "tried"), [(1.6, True), (9.0, False)])
def test_a_value_that_is_slow_at_small_sizes_is_tried_near_the_size_of_the_best(slower: float, tried: bool) -> None:
    """What a cast costs per step hides at a small size what it brings at a large one, unless it is hopeless."""
    bench = small_bench(budget_bytes=100_000 * MIB)
    bench.slower = lambda plan: slower if plan.values["precision"] == "bf16" and plan.micro_batch_size <= 8 else 1.0
    known = [bench.space.baseline, bench.space.at(bench.space.baseline.combination.replace(precision="bf16"), 8)]
    searcher = Guided(problem_of(bench))
    for number, plan in enumerate(known):
        tell(searcher, Trial(number=number, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
    trials = search(searcher, bench)
    best = best_of(trials, bench)
    assert best.micro_batch_size >= 8 * 8
    assert any(t.plan.values["precision"] == "bf16" and t.plan.micro_batch_size > 8 for t in trials) is tried
    assert not tried or bench.regret(best) < 0.02


def test_a_skipped_plan_is_not_asked_again() -> None:
    bench, log = small_bench(), MemoryLog()
    searcher = Guided(problem_of(bench))
    asked: list[str] = []
    while (plan := searcher.ask()) is not None and len(asked) < 100:
        asked.append(plan.key)
        big = plan.micro_batch_size > 8
        outcome = Outcome(status=Status.SKIPPED, reason="big") if big else bench.evaluate(plan, Purpose.PROBE)
        tell(searcher, log.finish(log.begin(plan, Purpose.PROBE), outcome))
    assert len(asked) == len(set(asked)) < len(list(bench.space.plans())) / 5


def raising(bench: FakeBench) -> FakeBench:
    """The model admits only the user's own batch."""

    def raises(purpose: Purpose) -> Outcome:
        return Outcome(status=Status.USER_ERROR, reason="shape '[8, 64]' is invalid")

    own = bench.space.baseline.micro_batch_size
    bench.faults = {plan.key: raises for plan in bench.space.plans() if plan.micro_batch_size != own}
    return bench


def test_where_the_users_code_raises_at_other_sizes_the_users_own_is_searched() -> None:
    bench = raising(small_bench())
    findings = run(tuning_of(bench))
    probed = [plan.micro_batch_size for plan in bench.probes()]
    assert len(probed) - probed.count(8) <= 3, "a larger and a smaller size, and one more to tell them from a value"
    assert findings.plan.micro_batch_size == 8
    able = [plan for plan in bench.space.plans() if plan.micro_batch_size == 8 and bench.fits(plan)]
    assert bench.samples_per_s(findings.plan) >= 0.97 * max(map(bench.samples_per_s, able))
