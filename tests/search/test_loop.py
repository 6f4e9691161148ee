"""The loop on a fake device: what is run, recorded, told, raced, proven and said."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from autofit.core.budget import Budget
from autofit.core.errors import (
    AutofitError,
    DevicePoisoned,
    NothingFits,
    RestoreError,
)
from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import OPEN, Purpose, RunTerms, Trial
from autofit.estimators.base import Estimator
from autofit.search.request import Event
from autofit.search.search import run
from autofit.searchers.guided.guided import Guided
from tests.fakes import (
    MIB,
    OPTIMIZER,
    PRECISION,
    FakeBench,
    Fixed,
    MemoryLog,
    always,
    small_bench,
    space_of,
    tuning_of,
)
from tests.search.listed import Listed, at, calm, listed, only

# The answer


def test_the_baseline_is_run_even_if_the_searcher_does_not_ask() -> None:
    bench = calm()
    findings = run(only(bench, at(bench, 32)))
    assert findings.baseline.outcome.measured
    assert findings.gain is not None


# Screening


def test_forbidden_plans_are_skipped_recorded_and_told() -> None:
    bench, log = calm(), MemoryLog()
    strange = bench.space.baseline.replace(precision="int3")
    make, made = listed(strange)
    findings = run(tuning_of(bench, log, searcher=make))
    assert (strange, Purpose.PROBE) not in bench.runs
    assert re.match("not in the search space: .*int3", log.finished[0].outcome.reason)
    assert made[0].told[0] == log.finished[0]
    assert findings.counts["skipped"] == 1
    assert log.finished[0] in findings.trials


def test_a_lower_bound_above_the_budget_keeps_a_plan_from_running() -> None:
    bench, log = calm(), MemoryLog()
    big = at(bench, 64)
    sure = Fixed(Estimate(value_bytes=3000 * MIB, lower_bytes=2000 * MIB, basis="by hand"), lambda plan: plan == big)
    run(only(bench, big, log=log, estimators=[sure]))
    reason = log.finished[0].outcome.reason
    assert log.finished[0].outcome.status is Status.SKIPPED
    assert "1.953 GiB" in reason
    assert "1.465 GiB" in reason
    assert "by hand" in reason


def test_a_value_above_the_budget_does_not_unless_cautious() -> None:
    big = Estimate(value_bytes=1510 * MIB, lower_bytes=1490 * MIB)
    for cautious in (False, True):
        bench = calm()
        plan = at(bench, 16)
        run(only(bench, plan, estimators=[Fixed(big, plan.__eq__)], cautious=cautious))
        assert ((plan, Purpose.PROBE) in bench.runs) is not cautious


@pytest.mark.parametrize("lower", [None, 300 * MIB])
@pytest.mark.parametrize(("value", "runs"), [(2000 * MIB, True), (2400 * MIB, False)])
def test_a_loose_estimate_counts_less_even_if_cautious(lower: int | None, value: int, runs: bool) -> None:
    bench = calm()
    plan = at(bench, 16)
    guess = Fixed(Estimate(value_bytes=value, lower_bytes=lower), lambda p: p == plan)
    run(only(bench, plan, estimators=[guess], cautious=True))
    assert ((plan, Purpose.PROBE) in bench.runs) is runs


def test_cautious_search_never_runs_what_is_over_the_budget() -> None:
    bench = small_bench(sample_mib=120.0, budget_bytes=1500 * MIB)
    findings = run(tuning_of(bench, cautious=True))
    assert all(bench.peak_bytes(plan) <= 1.1 * bench.budget_bytes for plan, _ in bench.runs)
    assert bench.regret(findings.plan) < 0.12


def test_the_tightest_bounds_of_all_estimators_count_and_bounds_go_before_guesses() -> None:
    bench = calm()
    seen: list[Estimate | None] = []

    class Looks(Listed):
        def ask(self) -> Plan | None:
            seen.append(self.problem.feasibility.estimate(bench.space.baseline))
            return None

    opinions = [
        Fixed(Estimate(value_bytes=10)),
        Fixed(Estimate(value_bytes=500, lower_bytes=200, upper_bytes=900)),
        Fixed(Estimate(value_bytes=400, lower_bytes=300, upper_bytes=450)),
    ]
    run(tuning_of(bench, searcher=Looks, estimators=opinions))
    assert seen[0] is not None
    assert (seen[0].lower_bytes, seen[0].value_bytes, seen[0].upper_bytes) == (300, 450, 450)
    assert seen[0].said_bytes == 500


def test_a_searcher_that_repeats_itself_for_ever_is_stopped() -> None:
    bench = calm()

    class Stuck(Listed):
        def ask(self) -> Plan | None:
            return at(bench, 16)

    findings = run(tuning_of(bench, searcher=Stuck))
    assert "repeats" in findings.stopped
    assert len(bench.probes()) == 2


# The record


def test_each_trial_is_on_disk_as_running_before_and_finished_before_it_is_told() -> None:
    bench, log = calm(), MemoryLog()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if purpose is not Purpose.BLOCK:
            assert (plan, purpose) in log.running.values()
        return bench.evaluate(plan, purpose)

    class Checks(Listed):
        plans = (at(bench, 4), at(bench, 16))

        def tell(self, trial: Trial) -> None:
            assert log.finished[-1] == trial
            assert not log.running

    run(tuning_of(bench, log, evaluate=evaluate, searcher=Checks))
    assert not log.running


def test_listeners_hear_of_every_trial() -> None:
    bench, events = calm(), list[Event]()
    run(tuning_of(bench, listen=events.append))
    heard = [e.trial.plan for e in events if e.kind == "trial" and e.trial is not None]
    assert heard == bench.probes()
    assert [e.done for e in events if e.kind == "trial"] == list(range(1, len(heard) + 1))
    assert {"stage", "race", "proof"} <= {e.kind for e in events}


# Limits


def test_the_number_of_trials_is_kept() -> None:
    bench = calm()
    tuning = tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, max_trials=5))
    findings = run(tuning)
    assert len(bench.probes()) == 5
    assert "5 trials" in findings.stopped
    assert any("cut short" in caveat for caveat in findings.caveats)


@pytest.mark.parametrize("time_s", [12.0, 20.0, 40.0])
def test_the_time_budget_covers_race_and_proof(time_s: float) -> None:
    bench = small_bench(prepare_s=1.0)
    findings = run(tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, time_s=time_s)))
    assert findings.proof.proven or bench.probes(Purpose.PROOF) == [findings.plan]
    assert bench.time.seconds <= time_s + 4.0, "a probe that began in time may end after it"
    ends = ("is spent", "the time ended", "a race of the best plans was worth more", "nothing left")
    assert any(end in findings.stopped for end in ends)


def test_a_probe_may_take_all_the_time_that_is_left() -> None:
    """A race is a refinement: time is not kept back for it, as from a compilation that takes longer than expected."""
    bench, left_s = calm(), []
    tuning = tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, time_s=25.0))

    def evaluate(plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        if purpose is Purpose.PROBE and terms.limit_s is not None:
            left_s.append(25.0 - bench.time.seconds - terms.limit_s)
        return bench.evaluate(plan, purpose, terms)

    run(replace(tuning, evaluate=evaluate, clock=tuning.clock))
    assert len(left_s) > 3
    assert left_s == pytest.approx([0.0] * len(left_s))


# Failures


@pytest.mark.fault("F01")
def test_the_baseline_does_not_fit_but_others_do() -> None:
    bench = calm(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 64), budget_bytes=900 * MIB)
    findings = run(tuning_of(bench))
    assert findings.gain is None
    assert not findings.baseline.outcome.measured
    assert any("the baseline (" in c and "no gain" in c for c in findings.caveats)
    assert bench.fits(findings.plan)


def test_a_user_error_in_one_combination_only_drops_it() -> None:
    bench = calm()
    for size in bench.space.sizes:
        for optimizer in OPTIMIZER.values:
            plan = at(bench, size, precision="bf16", optimizer=str(optimizer))
            bench.faults[plan.key] = always(Status.USER_ERROR, "no kernel for bf16")
    findings = run(tuning_of(bench))
    assert findings.plan.values["precision"] == "tf32"
    assert findings.counts["user error"] >= 1


@pytest.mark.fault("F14")
def test_a_poisoned_device_ends_the_search_in_this_process() -> None:
    bench, log = calm(), MemoryLog()
    bench.faults[bench.space.baseline.key] = always(Status.POISONED, "illegal memory access")
    with pytest.raises(DevicePoisoned, match="keeps all finished trials"):
        run(tuning_of(bench, log))
    assert log.finished[-1].outcome.status is Status.POISONED
    assert not log.running


@pytest.mark.fault("F14")
def test_one_poisoned_trial_is_survived_where_processes_are_fresh_and_two_in_a_row_are_not() -> None:
    bench = calm()
    bad = [at(bench, 16), at(bench, 32)]
    bench.faults[bad[0].key] = always(Status.POISONED, "illegal memory access")
    findings = run(only(bench, bench.space.baseline, bad[0], at(bench, 4), isolated=True))
    assert findings.counts["poisoned"] == 1
    bench.faults[bad[1].key] = always(Status.POISONED, "illegal memory access")
    ended = run(only(bench, bench.space.baseline, *bad, isolated=True))
    assert (ended.plan, ended.counts["poisoned"]) == (bench.space.baseline, 2)
    assert ended.stopped.startswith("DevicePoisoned: ")
    bench.faults[bench.space.baseline.key] = always(Status.POISONED, "illegal memory access")
    with pytest.raises(DevicePoisoned):
        run(only(bench, bench.space.baseline, *bad, isolated=True))


@pytest.mark.parametrize("how", ["raised", "outcome"])
def test_an_interrupt_is_recorded_and_ends_the_search_with_its_answer(how: str) -> None:
    bench, log = calm(), MemoryLog()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if plan != bench.space.baseline:
            if how == "raised":
                raise KeyboardInterrupt
            return Outcome(status=Status.INTERRUPTED, reason="ctrl-c")
        return bench.evaluate(plan, purpose)

    findings = run(tuning_of(bench, log, evaluate=evaluate))
    assert findings.interrupted
    assert findings.plan == bench.space.baseline
    assert log.finished[-1].outcome.status is Status.INTERRUPTED
    assert log.finished[0].outcome.measured
    assert not log.running


@pytest.mark.parametrize(
    ("error", "status"), [(DevicePoisoned("gone"), Status.POISONED), (RestoreError("differs"), Status.CRASHED)]
)
def test_an_error_of_autofit_is_recorded_and_passed_on(error: AutofitError, status: Status) -> None:
    bench, log = calm(), MemoryLog()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        raise error

    with pytest.raises(type(error)):
        run(tuning_of(bench, log, evaluate=evaluate))
    assert log.finished[-1].outcome.status is status
    assert not log.running


def ambiguous_once(bench: FakeBench, plan: Plan, times: int) -> Callable[[Plan, Purpose], Outcome]:
    """Returns an evaluation whose first `times` runs of `plan` are ambiguous."""
    left = [times]

    def evaluate(asked: Plan, purpose: Purpose, *_: object) -> Outcome:
        outcome = bench.evaluate(asked, purpose)
        if asked == plan and left[0] > 0:
            left[0] -= 1
            return Outcome(status=Status.AMBIGUOUS, reason="an internal error occurred")
        return outcome

    return evaluate


@pytest.mark.fault("F09")
def test_an_ambiguous_failure_is_run_once_more() -> None:
    bench, log = calm(), MemoryLog()
    plan = at(bench, 16)
    findings = run(only(bench, bench.space.baseline, plan, log=log, evaluate=ambiguous_once(bench, plan, 1)))
    assert findings.plan == plan
    assert [t.outcome.status for t in log.finished if t.plan == plan][:2] == [Status.AMBIGUOUS, Status.MEASURED]


@pytest.mark.fault("F09")
def test_a_failure_that_stays_ambiguous_is_one_of_memory_where_a_smaller_size_ran() -> None:
    for smaller_ran in (True, False):
        bench = calm()
        plan = at(bench, 16)
        plans = [bench.space.baseline, plan] if smaller_ran else [plan]
        make, made = listed(*plans)
        run(tuning_of(bench, searcher=make, estimators=[], evaluate=ambiguous_once(bench, plan, 9)))
        told = next(t for t in made[0].told if t.plan == plan)
        assert told.outcome.status is (Status.OUT_OF_MEMORY if smaller_ran else Status.AMBIGUOUS)
        assert "internal error" in told.outcome.reason


def test_the_loop_does_not_load_torch() -> None:
    code = "import sys, autofit.search, autofit.searchers, autofit.estimators; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_repeating_a_tuning_gives_the_same_plan() -> None:
    plans = [run(replace(tuning_of(small_bench()), seed=3)).plan for _ in range(2)]
    assert plans[0] == plans[1]


class Looked(Estimator):
    """Notes what it is asked to look at; knows a plan from then on."""

    def __init__(self, estimate: Estimate) -> None:
        self.looked: list[tuple[Plan, int]] = []
        self._estimate = estimate

    def tell(self, trial: Trial) -> None:
        return

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        self.looked.append((plan, len(along)))

    def estimate(self, plan: Plan) -> Estimate | None:
        return self._estimate if any(looked == plan for looked, _ in self.looked) else None


def test_estimators_look_at_the_users_plan_with_all_sizes_and_at_others_before_they_are_screened() -> None:
    bench, log = calm(), MemoryLog()
    big, eye = at(bench, 64), Looked(Estimate(value_bytes=3000 * MIB, lower_bytes=2900 * MIB, upper_bytes=3100 * MIB))
    with pytest.raises(NothingFits):
        run(only(bench, big, log=log, estimators=[eye]))
    assert eye.looked[0] == (bench.space.baseline, len(bench.space.sizes))
    assert (big, 0) in eye.looked
    assert next(t for t in log.finished if t.plan == big).outcome.status is Status.SKIPPED


def test_where_time_is_limited_the_baseline_runs_before_memory_is_estimated() -> None:
    bench, ran = calm(), []

    class Eye(Looked):
        def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
            ran.append(list(bench.probes()))

    budget = Budget(memory_bytes=bench.budget_bytes, requested=True, time_s=90.0)
    run(tuning_of(bench, estimators=[Eye(Estimate(value_bytes=1))], cautious=True, budget=budget))
    assert ran[0] == [bench.space.baseline]


def test_single_changes_are_looked_at_before_anything_runs_once() -> None:
    bench, surveyed = calm(), []

    class Surveyor(Estimator):
        def tell(self, trial: Trial) -> None:
            return

        def refine_all(self, plans: Sequence[Plan]) -> None:
            surveyed.append((list(plans), len(bench.runs)))

        def estimate(self, plan: Plan) -> Estimate | None:
            peak = bench.peak_bytes(plan)
            own = plan.combination == bench.space.baseline.combination
            return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak) if own else None

    budget = Budget(memory_bytes=bench.budget_bytes, requested=True)
    run(tuning_of(bench, estimators=[Surveyor()], cautious=True, budget=budget))
    assert [ran for _, ran in surveyed] == [0]
    changes = [len(plan.combination.changes_from(bench.space.baseline.combination)) for plan in surveyed[0][0]]
    assert sorted(changes) == [0, 0, *[1] * sum(len(knob.values) - 1 for knob in bench.space.facts.knobs)]


def test_nothing_is_surveyed_where_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, log = calm(), MemoryLog()
    run(tuning_of(bench, log))
    eye = Looked(Estimate(value_bytes=1))
    monkeypatch.setattr(eye, "refine_all", lambda plans: pytest.fail("nothing was to run"))
    known = MemoryLog(log.finished)
    run(tuning_of(bench, known, estimators=[eye]))


def test_a_look_that_poisons_the_device_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(plan: Plan, along: Sequence[Plan] = ()) -> None:
        if plan.values["precision"] == "bf16":
            raise DevicePoisoned("illegal memory access")

    bench, log = calm(), MemoryLog()
    eye = Looked(Estimate(value_bytes=1))
    monkeypatch.setattr(eye, "refine", poison)
    for searcher in (listed(bench.space.baseline, at(bench, 16, precision="bf16"))[0], Guided):
        findings = run(tuning_of(bench, log, searcher=searcher, estimators=[eye], isolated=True))
        assert re.match(r"DevicePoisoned: .*illegal memory access.*keeps all finished trials", findings.stopped)
        assert log.finished[0].outcome.measured
        assert not log.running


class Slow(Looked):
    """Takes a minute for each plan that is not the baseline's combination, and estimates it far above the budget."""

    def __init__(self, bench: FakeBench) -> None:
        super().__init__(Estimate(value_bytes=1))
        self._bench = bench

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        super().refine(plan, along)
        if plan.combination != self._bench.space.baseline.combination:
            self._bench.time.advance(60.0)

    def estimate(self, plan: Plan) -> Estimate | None:
        if plan.combination == self._bench.space.baseline.combination:
            peak = self._bench.peak_bytes(plan)
        elif any(plan == looked for looked, _ in self.looked):
            peak = 2 * self._bench.budget_bytes
        else:
            return None
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak)


def test_no_plan_is_looked_at_once_the_time_is_spent() -> None:
    bench = calm()
    eye = Slow(bench)
    findings = run(tuning_of(bench, estimators=[eye], budget=Budget(memory_bytes=bench.budget_bytes, time_s=90.0)))
    slow = [plan for plan, _ in eye.looked if plan.combination != bench.space.baseline.combination]
    assert len(slow) == 2, "the first ends within the time, the second beyond it"
    assert not set(slow) & set(bench.probes())
    assert "time budget" in findings.stopped


def test_a_plan_that_fits_with_room_to_spare_is_not_looked_at() -> None:
    bench = calm()
    easy, eye = at(bench, 16), Looked(Estimate(value_bytes=1))
    guess = Fixed(Estimate(value_bytes=100 * MIB), lambda plan: plan == easy)
    run(only(bench, easy, estimators=[eye, guess]))
    assert easy not in [plan for plan, _ in eye.looked]
