"""What a later run makes of trials whose process died."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.study import trial_start as request
from autofit.study.optuna_study import OptunaStudy, StoredTrial
from tests.study.samples import MIB, PLAN, measured, reopen, storage_at


def outcome_of(number: int) -> Outcome:
    return measured((100 + number) * MIB)


def plan_of(number: int) -> Plan:
    return PLAN.replace(micro_batch_size=number + 1)


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked child and returns how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def begin_and_die(path: Path, plan: Plan = PLAN) -> None:
    def work() -> None:
        reopen(path).begin(plan, Purpose.PROBE)

    assert in_child(work) == 0


def writes_of(work: Callable[[], object]) -> int:
    """Returns how many statements `work` writes with, commits included."""
    found = [0]

    def counted(*args: object) -> None:
        # A statement is the third argument of its event.
        found[0] += len(args) < 3 or not str(args[2]).startswith("SELECT")

    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, counted)
    try:
        work()
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, counted)
    return found[0]


def killed_at(path: Path, write: int, acknowledged: int) -> Callable[[], None]:
    """Returns work that runs trials, says so on a pipe after each, and dies just before its `write`-th statement.

    Each statement that writes counts, and each commit.
    """
    left = [write]

    def counted(*args: object) -> None:
        # A statement is the third argument of its event.
        left[0] -= len(args) < 3 or not str(args[2]).startswith("SELECT")
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        study = reopen(path)
        for name in ("before_cursor_execute", "commit"):
            event.listen(Engine, name, counted)
        for number in range(2):
            study.finish(study.begin(plan_of(number), Purpose.PROBE), outcome_of(number))
            os.write(acknowledged, b"x")

    return work


@pytest.mark.slow
def test_every_acknowledged_trial_survives_a_kill_at_every_write(db: Path) -> None:
    blank = db.read_bytes()
    for write in range(1, 100):
        db.write_bytes(blank)
        reader, writer = os.pipe()
        code = in_child(killed_at(db, write, writer))
        os.close(writer)
        acknowledged = len(os.read(reader, 100))
        os.close(reader)
        study = reopen(db)
        kept = [(trial.plan, trial.outcome) for trial in study.earlier()]
        # One more may be there: its outcome was written, and only the word that it was is missing.
        assert acknowledged <= len(kept) <= acknowledged + 1
        assert kept == [(plan_of(number), outcome_of(number)) for number in range(len(kept))]
        assert all(
            trial.state.is_finished() for trial in optuna.load_study(study_name="net", storage=storage_at(db)).trials
        )
        if code == 0:
            assert acknowledged == 2
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("the child never reached its end")
    assert write > 40, "fewer kills than writes of two trials"


def test_a_trial_that_was_cut_off_while_it_was_written_is_as_before(db: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    whole = reopen(shutil.copy(db, tmp_path / "whole.db"))
    last_write = writes_of(lambda: whole.finish(whole.begin(plan_of(0), Purpose.PROBE), outcome_of(0)))
    assert in_child(killed_at(db, last_write, writer)) == -signal.SIGKILL
    os.close(writer)
    assert os.read(reader, 100) == b""
    os.close(reader)
    (found,) = optuna.load_study(study_name="net", storage=storage_at(db)).trials
    assert (found.state, found.constraints) == (TrialState.RUNNING, {})
    assert set(found.user_attrs) == {"autofit.request", "autofit.request.sum", "purpose"}
    assert reopen(db).notes == ("1 trial was running when its process died: recorded as failed",)


def test_a_kill_from_outside_loses_no_acknowledged_trial(db: Path) -> None:
    blank = db.read_bytes()
    for wanted in (1, 3):
        db.write_bytes(blank)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            study = reopen(db)
            for number in range(1000):
                study.finish(study.begin(plan_of(number), Purpose.PROBE), outcome_of(number))
                os.write(writer, b"x")
            os._exit(0)
        os.close(writer)
        acknowledged = sum(len(os.read(reader, 1)) for _ in range(wanted))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        acknowledged += len(os.read(reader, 1000))
        os.close(reader)
        plans = [trial.plan for trial in reopen(db).earlier()]
        assert acknowledged <= len(plans) <= acknowledged + 1
        assert plans == [plan_of(number) for number in range(len(plans))]


def test_a_plan_is_tried_once_more_after_its_process_died_and_then_no_more(db: Path) -> None:
    begin_and_die(db)
    once = reopen(db)
    assert once.earlier() == ()
    assert once.notes == ("1 trial was running when its process died: recorded as failed",)
    (kept,) = optuna.load_study(study_name="net", storage=storage_at(db)).trials
    assert (kept.state, kept.user_attrs["reason"]) == (TrialState.FAIL, DIED)
    begin_and_die(db)
    begin_and_die(db, PLAN.replace(micro_batch_size=1))
    for notes in (2, 1):  # the deaths are told once, the plan that is not tried again each time
        twice = reopen(db)
        assert [(trial.plan, trial.outcome.status) for trial in twice.earlier()] == [(PLAN, Status.CRASHED)] * 2
        assert len(twice.notes) == notes
        assert twice.notes[-1] == f"not tried again because its process died 2 times: {PLAN}"


def test_a_run_that_was_taken_for_dead_loses_nothing(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers with one host name do not see each other's processes."""
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROBE)
    with monkeypatch.context() as patch:
        patch.setattr(request.TrialStart, "alive", property(lambda one: False))
        assert reopen(db).notes == ("1 trial was running when its process died: recorded as failed",)
    finished = study.finish(number, outcome_of(1))
    assert finished.number == number + 1
    again = reopen(db)
    assert [(trial.number, trial.outcome) for trial in again.earlier()] == [(finished.number, outcome_of(1))]


def test_a_trial_that_ends_while_the_study_is_read_is_no_orphan(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process finished it and ended between the reading of the trials and the look for the process."""
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROBE)
    entries = OptunaStudy.entries

    def then_it_ends(book: OptunaStudy) -> Iterator[StoredTrial | None]:
        found = list(entries(book))
        study.finish(number, outcome_of(1))
        yield from found

    monkeypatch.setattr(OptunaStudy, "entries", then_it_ends)
    monkeypatch.setattr(request.TrialStart, "alive", property(lambda one: False))
    assert reopen(db).notes == ()
