"""Runs are on disk as trials, failures are settled, and a device that is poisoned for good ends the search."""

import re
from collections.abc import Iterator

import pytest

from autofit.core.errors import DevicePoisoned
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.request import Event
from autofit.search.trial_runner import TrialRunner
from tests.fakes import MemoryLog, small_bench, tuning_of

BENCH = small_bench()
PLAN = BENCH.space.baseline


class Script:
    """Answers runs with outcomes in turn."""

    def __init__(self, *outcomes: Outcome | BaseException) -> None:
        self._outcomes: Iterator[Outcome | BaseException] = iter(outcomes)
        self.asked: list[Purpose] = []

    def __call__(self, plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        """Returns the next outcome, or raises it."""
        self.asked.append(purpose)
        outcome = next(self._outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def runner_of(script: Script, **changes: object) -> tuple[TrialRunner, MemoryLog, list[Event]]:
    log, events = MemoryLog(), list[Event]()
    bench = small_bench()
    return TrialRunner(tuning_of(bench, log, evaluate=script, listen=events.append, **changes)), log, events


def failed(status: Status, reason: str = "why") -> Outcome:
    return Outcome(status=status, reason=reason)


def measured() -> Outcome:
    return small_bench().evaluate(PLAN, Purpose.PROBE)


def test_a_probe_is_recorded_told_and_counted() -> None:
    runner, log, events = runner_of(Script(measured()))
    trial = runner.probe(PLAN)
    assert log.finished == [trial] == runner.trials
    assert (runner.probes, events[-1].kind, events[-1].done) == (1, "trial", 1)


def test_a_plan_that_runs_warm_is_charged_the_start_of_an_earlier_run_of_this_study() -> None:
    def started(startup_s: float) -> Outcome:
        found = measured()
        assert found.measurement is not None
        changed = found.measurement.model_copy(update={"startup_s": startup_s})
        return found.model_copy(update={"measurement": changed})

    past = Trial(number=0, plan=PLAN, outcome=started(9.0), earlier=True)
    tuning = tuning_of(small_bench(), MemoryLog((past,)), evaluate=Script(started(0.5)))
    found = TrialRunner(tuning).probe(PLAN).outcome.measurement
    assert found is not None
    assert found.startup_s == 9.0


def test_an_ambiguous_failure_is_run_once_more() -> None:
    script = Script(failed(Status.AMBIGUOUS), measured())
    runner, log, _ = runner_of(script)
    assert runner.attempt(PLAN, Purpose.PROBE).outcome.measured
    assert [trial.outcome.status for trial in log.finished] == [Status.AMBIGUOUS, Status.MEASURED]


def test_an_out_of_memory_is_not_repeated() -> None:
    script = Script(failed(Status.OUT_OF_MEMORY))
    runner, _, _ = runner_of(script)
    assert runner.attempt(PLAN, Purpose.PROBE).outcome.status is Status.OUT_OF_MEMORY
    assert script.asked == [Purpose.PROBE]


def retried() -> Outcome:
    """Returns the outcome of a plan that ran with a refused allocation, far below the budget."""
    measurement = measured().measurement
    assert measurement is not None
    memory = measurement.memory.model_copy(update={"judged_bytes": 1, "allocator_retries": 1})
    measurement = measurement.model_copy(update={"memory": memory})
    return Outcome(status=Status.OVER_BUDGET, reason="1 allocator retries", measurement=measurement)


@pytest.mark.fault("F37")
def test_an_allocation_that_was_refused_far_below_the_budget_counts_only_if_it_is_refused_again() -> None:
    runner, log, _ = runner_of(Script(retried(), measured(), retried(), retried()))
    assert runner.attempt(PLAN, Purpose.PROBE).outcome.measured
    assert [trial.outcome.status for trial in log.finished] == [Status.AMBIGUOUS, Status.MEASURED]
    assert runner.attempt(PLAN, Purpose.PROBE).outcome.status is Status.OVER_BUDGET
    assert [trial.outcome.status for trial in log.finished[2:]] == [Status.AMBIGUOUS, Status.OVER_BUDGET]


def test_a_block_is_repeated_alike() -> None:
    runner, log, _ = runner_of(Script(retried(), measured(), retried(), retried()))
    assert runner.block(PLAN)[1] is None
    assert log.finished == []
    assert runner.block(PLAN)[0].status is Status.OVER_BUDGET


def test_of_the_blocks_only_failures_are_recorded() -> None:
    runner, log, _ = runner_of(Script(measured(), failed(Status.OUT_OF_MEMORY)))
    assert runner.block(PLAN)[1] is None
    assert log.finished == []
    outcome, trial = runner.block(PLAN)
    assert trial is not None
    assert log.finished == [trial]
    assert (trial.purpose, outcome.status) == (Purpose.BLOCK, Status.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), Status.INTERRUPTED), (DevicePoisoned("gone"), Status.POISONED),
        (ZeroDivisionError("no"), Status.CRASHED),
    ],
)  # fmt: skip
def test_what_ends_a_run_is_on_disk_before_it_is_raised(error: BaseException, status: Status) -> None:
    runner, log, _ = runner_of(Script(error))
    with pytest.raises(type(error)):
        runner.attempt(PLAN, Purpose.PROBE)
    assert [trial.outcome.status for trial in log.finished] == [status]
    assert log.running == {}


def test_a_poisoned_device_ends_the_search_in_this_process_at_once() -> None:
    runner, _, _ = runner_of(Script(failed(Status.POISONED)))
    with pytest.raises(DevicePoisoned):
        runner.attempt(PLAN, Purpose.PROBE)


def test_where_processes_are_replaced_it_does_at_the_second_in_a_row() -> None:
    script = Script(failed(Status.POISONED), measured(), failed(Status.POISONED), failed(Status.POISONED))
    runner, log, _ = runner_of(script, isolated=True)
    for _ in range(3):
        runner.attempt(PLAN, Purpose.PROBE)
    with pytest.raises(DevicePoisoned):
        runner.attempt(PLAN, Purpose.PROBE)
    assert len(log.finished) == 4


def test_a_plan_that_is_not_run_keeps_its_reason() -> None:
    runner, log, events = runner_of(Script())
    trial = runner.skip(PLAN, "too large")
    assert (trial.outcome.status, trial.outcome.reason) == (Status.SKIPPED, "too large")
    assert "skipped, too large" in events[-1].text
    assert log.finished == [trial]


def test_a_finished_trial_is_told_by_what_its_plan_changes_and_how_it_ended() -> None:
    runner, _, events = runner_of(Script(measured(), failed(Status.OUT_OF_MEMORY, "2 GiB more")))
    size = PLAN.micro_batch_size
    runner.probe(PLAN)
    assert re.fullmatch(rf"micro batch {size}: [\d.,]+ samples/s, peak .*", events[-1].text)
    runner.probe(PLAN.replace(fast=True))
    assert events[-1].text == f"micro batch {size}, fast=True: out of memory: 2 GiB more"
