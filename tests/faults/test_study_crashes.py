"""F21, defect 8: one crash or time-out is no verdict on a plan; two in a row are."""

from pathlib import Path

import pytest

from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.search import run
from tests.fakes import FakeBench, MemoryLog, small_bench, tuning_of
from tests.study.samples import PLAN, failed, measured, reopen

CRASHES = (Status.CRASHED, Status.TIMED_OUT)


def crashing(bench: FakeBench, plan: Plan, status: Status, times: int, during: Purpose = Purpose.PROBE) -> None:
    left = [times]

    def fault(purpose: Purpose) -> Outcome | None:
        if purpose is not during or not left[0]:
            return None
        left[0] -= 1
        return failed(status)

    bench.faults[plan.key] = fault


@pytest.mark.parametrize("status", CRASHES)
@pytest.mark.fault("F21")
def test_defect_08_a_baseline_that_crashed_once_is_run_again_and_has_its_gain(status: Status) -> None:
    bench, log = small_bench(), MemoryLog()
    own = bench.space.baseline
    crashing(bench, own, status, 1)
    findings = run(tuning_of(bench, log))
    assert bench.probes().count(own) == 2
    assert findings.gain is not None
    assert [t.outcome.status for t in log.finished if t.plan == own][:2] == [status, Status.MEASURED]


@pytest.mark.fault("F21")
def test_defect_08_two_crashes_in_a_row_are_a_verdict() -> None:
    bench = small_bench()
    own = bench.space.baseline
    crashing(bench, own, Status.CRASHED, 9)
    findings = run(tuning_of(bench))
    assert bench.probes().count(own) == 2
    assert findings.gain is None
    assert any("the baseline (" in caveat and "did not run" in caveat for caveat in findings.caveats)


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
def test_defect_08_one_crash_in_the_race_or_the_proof_costs_the_winner_nothing(purpose: Purpose) -> None:
    best = run(tuning_of(small_bench())).plan
    bench = small_bench()
    crashing(bench, best, Status.CRASHED, 1, purpose)
    assert run(tuning_of(bench)).plan == best


def test_a_plan_is_not_run_again_when_the_time_is_over() -> None:
    bench = small_bench()
    own = bench.space.baseline

    def slow_death(purpose: Purpose) -> Outcome | None:
        bench.time.advance(1000)
        return failed(Status.TIMED_OUT)

    bench.faults[own.key] = slow_death
    tuning = tuning_of(bench)
    tuning.budget = tuning.budget.model_copy(update={"time_s": 500.0})
    with pytest.raises(Exception, match="before any plan was measured"):
        run(tuning)
    assert bench.probes() == [own]


def test_defect_08_a_baseline_that_crashed_in_an_earlier_run_is_run_again() -> None:
    bench = small_bench()
    own = bench.space.baseline
    past = [Trial(number=n, plan=own, outcome=failed(Status.CRASHED), earlier=True) for n in range(2)]
    findings = run(tuning_of(bench, MemoryLog(tuple(past))))
    assert findings.gain is not None
    assert bench.probes().count(own) == 1


def left(path: Path, *outcomes: Outcome) -> None:
    study = reopen(path)
    for outcome in outcomes:
        study.finish(study.begin(PLAN, Purpose.PROBE), outcome)


@pytest.mark.parametrize("status", CRASHES)
def test_defect_08_one_crash_is_not_taken_over_by_a_later_run_and_two_in_a_row_are(
    journal: Path, status: Status
) -> None:
    left(journal, failed(status))
    assert reopen(journal).earlier() == ()
    left(journal, failed(status))
    assert [trial.outcome.status for trial in reopen(journal).earlier()] == [status] * 2
    assert reopen(journal).notes == (f"not tried again because it crashed or hung 2 times: {PLAN}",)


def test_defect_08_a_crash_beside_a_measurement_does_not_count(journal: Path) -> None:
    left(journal, failed(Status.CRASHED), measured(), failed(Status.TIMED_OUT))
    assert [trial.outcome.status for trial in reopen(journal).earlier()] == [Status.MEASURED]


def test_a_death_and_a_crash_in_a_row_count(journal: Path) -> None:
    left(journal, failed(Status.CRASHED), Outcome(status=Status.CRASHED, reason=DIED))
    assert len(reopen(journal).earlier()) == 2
