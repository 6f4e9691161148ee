"""What a later run makes of earlier trials: of those whose process died, and in terms of its own search space."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.study.stored_trials import TrialStart
from tests.faults.kills import dying
from tests.study.samples import MIB, PLAN, in_optuna, measured, reopen, run, space


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


def killed_at(path: Path, write: int, written: float, acknowledged: int) -> Callable[[], None]:
    """Returns work that runs two trials, says so on a pipe after each, and dies in its `write`-th write.

    Args:
        path: the journal.
        write: number of that write, from 1.
        written: which part of it is on disk by then.
        acknowledged: the pipe.
    """

    def work() -> None:
        study = reopen(path)
        dying(path, write, written)()
        for number in range(2):
            study.finish(study.begin(plan_of(number), Purpose.PROBE), outcome_of(number))
            os.write(acknowledged, b"x")

    return work


@pytest.mark.slow
@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
@pytest.mark.fault("F52")
def test_every_acknowledged_trial_survives_a_kill_at_every_write(journal: Path, written: float) -> None:
    blank = journal.read_bytes()
    for write in range(1, 100):
        journal.write_bytes(blank)
        reader, writer = os.pipe()
        code = in_child(killed_at(journal, write, written, writer))
        os.close(writer)
        acknowledged = len(os.read(reader, 100))
        os.close(reader)
        study = reopen(journal)
        kept = [(trial.plan, trial.outcome) for trial in study.earlier()]
        # One more may be there: its outcome was written, and only the word that it was is missing.
        assert acknowledged <= len(kept) <= acknowledged + 1
        assert kept == [(plan_of(number), outcome_of(number)) for number in range(len(kept))]
        assert len(in_optuna(journal)) <= 2  # no trial is there twice
        assert all(trial.state.is_finished() for trial in in_optuna(journal))
        if code == 0:
            assert acknowledged == 2
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("the child never reached its end")
    assert write > 14, "fewer kills than writes of two trials"


@pytest.mark.fault("F52")
def test_a_kill_from_outside_loses_no_acknowledged_trial(journal: Path) -> None:
    blank = journal.read_bytes()
    for wanted in (1, 3):
        journal.write_bytes(blank)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            study = reopen(journal)
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
        plans = [trial.plan for trial in reopen(journal).earlier()]
        assert acknowledged <= len(plans) <= acknowledged + 1
        assert plans == [plan_of(number) for number in range(len(plans))]


@pytest.mark.fault("F52")
def test_a_plan_is_tried_once_more_after_its_process_died_and_then_no_more(journal: Path) -> None:
    begin_and_die(journal)
    once = reopen(journal)
    assert once.earlier() == ()
    assert once.notes == ("1 trial was running when its process died: recorded as failed",)
    (kept,) = in_optuna(journal)
    assert (kept.state, kept.user_attrs["reason"]) == (TrialState.FAIL, DIED)
    begin_and_die(journal)
    begin_and_die(journal, PLAN.replace(micro_batch_size=1))
    for notes in (2, 1):  # the deaths are told once, the plan that is not tried again each time
        twice = reopen(journal)
        assert [(trial.plan, trial.outcome.status) for trial in twice.earlier()] == [(PLAN, Status.CRASHED)] * 2
        assert len(twice.notes) == notes
        assert twice.notes[-1] == f"not tried again because its process died 2 times: {PLAN}"


def test_a_run_that_was_taken_for_dead_loses_nothing(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers with one host name do not see each other's processes."""
    study = reopen(journal)
    number = study.begin(PLAN, Purpose.PROBE)
    with monkeypatch.context() as patch:
        patch.setattr(TrialStart, "alive", property(lambda one: False))
        assert reopen(journal).notes == ("1 trial was running when its process died: recorded as failed",)
    finished = study.finish(number, outcome_of(1))
    assert finished.number == number + 1
    again = reopen(journal)
    assert [(trial.number, trial.outcome) for trial in again.earlier()] == [(finished.number, outcome_of(1))]


def test_a_trial_that_ends_while_the_study_is_read_is_no_orphan(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process finished it and ended between the reading of the trials and the look for the process."""
    study = reopen(journal)
    number = study.begin(PLAN, Purpose.PROBE)

    def then_it_ends(start: TrialStart) -> bool:
        study.finish(number, outcome_of(1))
        return False

    monkeypatch.setattr(TrialStart, "alive", property(then_it_ends))
    assert reopen(journal).notes == ()


def test_a_knob_that_came_into_play_later_has_its_default_in_older_trials(journal: Path) -> None:
    narrow = space().model_copy(update={"knobs": space().knobs[1:]})
    before = Plan(values={name: value for name, value in PLAN.values.items() if name != "precision"})
    study = reopen(journal, facts=narrow)
    study.finish(study.begin(before, Purpose.PROBE), measured())
    later = reopen(journal)
    assert [trial.plan for trial in later.earlier()] == [PLAN.replace(precision="fp32")]
    assert later.notes == ()


def test_trials_of_plans_that_are_not_searched_now_are_said_with_what_differs(journal: Path) -> None:
    run(journal, measured())
    other = space().model_copy(update={"global_batch_size": 16, "baseline": PLAN.replace(accumulation_steps=4)})
    study = reopen(journal, facts=other)
    assert study.notes == (
        "1 trial not used, since this run does not search these plans: it has 4 x 2 samples per "
        "optimizer step, and this search runs 4 x 4",
    )
    assert len(study.earlier()) == 1  # for the record
    study.finish(study.begin(PLAN.replace(precision="fp32"), Purpose.PROBE), measured())
    (note,) = reopen(journal, facts=space(precisions=("fp32",))).notes
    assert note == ("1 trial not used, since this run does not search these plans: precision=bf16 is not one of fp32")
