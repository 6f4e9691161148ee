"""The trial log in memory: numbers go on from the earlier trials, and a running trial is not a finished one."""

import pytest

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from tests.fakes import MemoryLog

CRASHED = Outcome(status=Status.CRASHED, reason="injected")
PLAN = Plan(values={"precision": "bf16"})


def test_trial_is_running_until_it_is_finished() -> None:
    log = MemoryLog()
    number = log.begin(PLAN, Purpose.PROBE)
    assert log.running == {number: (PLAN, Purpose.PROBE)}
    assert log.finished == []
    trial = log.finish(number, CRASHED)
    assert trial == Trial(number=number, plan=PLAN, outcome=CRASHED, purpose=Purpose.PROBE)
    assert log.running == {}
    assert log.finished == [trial]


def test_trial_that_was_not_begun_cannot_be_finished() -> None:
    with pytest.raises(KeyError):
        MemoryLog().finish(0, CRASHED)


def test_numbers_are_distinct_and_go_on_from_the_earlier_trials() -> None:
    past = [Trial(number=0, plan=PLAN, outcome=CRASHED, purpose=Purpose.PROBE)]
    log = MemoryLog(past)
    numbers = [log.begin(PLAN, Purpose.PROBE) for _ in range(2)]
    log.finish(numbers[0], CRASHED)
    assert [*numbers, log.begin(PLAN, Purpose.PROOF)] == [1, 2, 3]


def test_dropped_trials_are_no_longer_earlier_ones() -> None:
    log = MemoryLog([Trial(number=0, plan=PLAN, outcome=CRASHED, purpose=Purpose.PROBE)])
    assert len(log.earlier()) == 1
    log.drop("another device")
    assert list(log.earlier()) == []
    assert log.dropped == ["another device"]
