"""What is stored of a trial: read back whole or not at all, judged by another budget, and whether its process lives."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.study import stored_trials
from autofit.study.stored_trials import OUTCOME, START, StoredTrial, TrialStart, sealed
from tests.study.samples import HERE, MIB, PLAN, measured, reopen


def outcome(peak_mib: int, status: Status = Status.MEASURED, **memory: Any) -> Outcome:
    read = Memory(allocated_bytes=peak_mib * MIB, judged_bytes=peak_mib * MIB, judged_by="footprint", **memory)
    reason = "" if status is Status.MEASURED else "too large"
    return Outcome(
        status=status, reason=reason, measurement=Measurement(step_times_s=(1.0,), samples_per_step=8, memory=read)
    )


def judged(found: Outcome, then_bytes: int, now_bytes: int) -> Outcome | None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, then_bytes)
    trial = StoredTrial(0, start, found).under(now_bytes)
    return None if trial is None else trial.outcome


def test_a_peak_is_judged_by_the_budget_of_the_reader() -> None:
    assert judged(outcome(10), 20 * MIB, 15 * MIB) == outcome(10)
    over = judged(outcome(10), 20 * MIB, 5 * MIB)
    assert over is not None
    assert over.status is Status.OVER_BUDGET
    assert over.reason == "its peak of 10 MiB (footprint) is above the memory budget of 5 MiB"
    found = judged(outcome(10, Status.OVER_BUDGET), 5 * MIB, 20 * MIB)
    assert found is not None
    assert (found.status, found.reason) == (Status.MEASURED, "")


def test_a_plan_that_was_short_of_memory_says_nothing_of_a_larger_budget() -> None:
    short = outcome(10, Status.OVER_BUDGET, allocator_retries=1)
    assert judged(short, 5 * MIB, 20 * MIB) is None
    assert judged(short, 12 * MIB, 11 * MIB) == short


@pytest.mark.parametrize("status", [Status.CRASHED, Status.USER_ERROR])
def test_what_has_nothing_to_do_with_memory_stays(status: Status) -> None:
    crashed = Outcome(status=status, reason="no")
    assert judged(crashed, 1, 2) == crashed


def test_a_record_that_is_missing_or_damaged_is_not_read() -> None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, MIB).model_dump_json()
    whole = {START: start, OUTCOME: measured().model_dump_json()}
    assert StoredTrial.of(0, whole, finished=True) is not None
    for damaged in ({}, {START: start}, whole | {START: start[:40]}, whole | {OUTCOME: '{"plan": 1}'}):
        assert StoredTrial.of(0, damaged, finished=True) is None


@pytest.mark.fault("F53")
def test_a_record_in_which_a_bit_has_flipped_is_not_read_and_one_without_a_checksum_is() -> None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, MIB).model_dump_json()
    stored = {START: sealed(start), OUTCOME: sealed(measured().model_dump_json())}
    whole = StoredTrial.of(0, stored, finished=True)
    assert whole == StoredTrial.of(0, {START: start, OUTCOME: measured().model_dump_json()}, finished=True)
    text = stored[OUTCOME].encode()
    for place in range(len(text)):
        for bit in range(7):
            flipped = bytes([*text[:place], text[place] ^ 1 << bit, *text[place + 1 :]]).decode()
            assert StoredTrial.of(0, {**stored, OUTCOME: flipped}, finished=True) in (None, whole)


def test_a_trial_of_a_living_process_is_left_alone(journal: Path) -> None:
    code = (
        "import sys; from tests.study.samples import *; from autofit.core.trial import Purpose\n"
        "study = reopen(sys.argv[1]); number = study.begin(PLAN, Purpose.PROBE); print('running', flush=True)\n"
        "sys.stdin.readline(); study.finish(number, measured())"
    )
    words, root = [sys.executable, "-c", code, str(journal)], Path(__file__).parents[2]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        study = reopen(journal)
        assert study.earlier() == ()
        assert len(study.notes) == 1
        assert study.notes[0].startswith(f"trial 0 is running in process {child.pid} on ")
        child.stdin.write("\n")
    assert child.returncode == 0
    assert [trial.outcome for trial in reopen(journal).earlier()] == [measured()]


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, MIB)
    assert start.alive
    assert not start.model_copy(update={"process_start": start.process_start + 1}).alive


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended and was not reaped."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield pid
    os.waitpid(pid, 0)


def test_a_process_that_has_ended_is_dead_although_it_was_not_reaped(ended: int) -> None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, MIB)
    assert not start.model_copy(update={"pid": ended}).alive


def test_a_trial_of_another_machine_is_given_up_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    start = TrialStart.now(PLAN, Purpose.PROBE, HERE, MIB)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert start.alive
    assert not start.model_copy(update={"started": start.started - timedelta(hours=25)}).alive
    assert stored_trials.STUDY_SCHEMA == "autofit.study/1"
