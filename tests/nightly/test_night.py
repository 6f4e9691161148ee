"""A night over simulated jobs: order, budgets, failures that stop no other job, kills, and what is written."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autofit import locks, planfile
from autofit.core.errors import (
    AutofitError,
    Busy,
    DeviceMissing,
    DevicePoisoned,
    StudyError,
    UsageError,
    UserCodeError,
)
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly import proposals
from autofit.nightly.night import NightOptions, plan_of_night
from autofit.nightly.records import VerdictKind
from tests.fakes import always
from tests.nightly.benches import faster
from tests.nightly.nights import MachineRoom


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    return MachineRoom(tmp_path)


def stop_at(count: int, error: BaseException) -> Callable[[str, Plan, Purpose], None]:
    """Returns what raises in the run with this number."""
    left = [count]

    def run(job: str, plan: Plan, purpose: Purpose) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    return run


def test_unchanged_jobs_take_eight_runs_each_and_their_records_are_kept(room: MachineRoom) -> None:
    room.add("gpt")
    room.add("bert")
    result = room.night()
    assert result.exit_code == 0
    assert [record.job for record in result.records] == ["gpt", "bert"]
    assert [record.probes for record in result.records] == [8, 8]
    assert room.runs("gpt") == room.runs("bert") == 8
    for record in result.records:
        assert room.records(record.job) == (record,)
        assert record.night == result.night
        assert record.verdict.kind is VerdictKind.CANNOT_COMPARE
        assert (record.tuned, record.proposed) == ("", None)
        assert record.gain is not None
        assert record.gain.low > 1
        assert record.duration_s > 0


def test_the_job_that_was_not_checked_for_longest_comes_first(room: MachineRoom) -> None:
    room.add("gpt")
    room.add("bert")
    room.night(only=("gpt",))
    room.add("mlp")
    room.night()
    assert room.opened == ["bert", "mlp", "gpt"]


def test_the_time_of_a_night_is_shared_fairly_over_nights(room: MachineRoom) -> None:
    for name in "abc":
        room.add(name)
    room.time_s = 8.0
    result = room.night()
    assert [record.job for record in result.records] == ["a", "b"]
    assert result.unchecked == {"c": "the time of the night was over"}
    assert result.exit_code == 0  # it comes first in the next night
    assert room.history.unfinished_night() is None
    result = room.night()
    assert room.opened[:2] == ["c", "a"]
    assert room.night(time_s=600.0).unchecked == {}  # the command line has the last word


def test_a_night_without_time_for_a_single_job_is_no_success(room: MachineRoom) -> None:
    room.add("a")
    result = room.night(time_s=0.1)
    assert (result.exit_code, result.records) == (7, ())
    assert "the time budget" in result.unchecked["a"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserCodeError("your code failed: boom", "Traceback: boom"), 5),
        (DevicePoisoned("the device answers every call with an error."), 8),
        (UsageError("train.py has no function 'make'."), 2),
        (AutofitError("internal"), 1),
        (RuntimeError("unforeseen"), 1),
    ],
)
def test_the_error_of_a_job_is_its_verdict_and_stops_no_other(error: Exception, code: int, room: MachineRoom) -> None:
    room.add("a")
    room.add("b")
    room.errors["a"] = error
    result = room.night()
    assert result.exit_code == code
    assert [(record.job, record.verdict.kind) for record in result.records] == [
        ("a", VerdictKind.ERROR), ("b", VerdictKind.CANNOT_COMPARE),
    ]  # fmt: skip
    assert room.records("a")[0].verdict.reason == str(error).removesuffix(".")
    assert any("Traceback" in line for line in room.said) is (code in (5, 1) and type(error) is not AutofitError)


@pytest.mark.parametrize(
    "error", [Busy("the GPU is in use: found process 7."), DeviceMissing("no device 'cuda:7' here; available: cpu.")]
)
def test_a_busy_or_missing_device_skips_its_jobs_alone(error: Exception, room: MachineRoom) -> None:
    room.add("a")
    room.add("b")
    room.errors["a"] = error
    result = room.night()
    assert result.exit_code == 6
    assert [record.job for record in result.records] == ["b"]
    assert result.unchecked == {"a": str(error)}
    assert room.records("a") == ()
    room.errors.clear()
    room.night()
    assert room.opened == ["a", "b"]  # it is the longest unchecked


def test_a_plan_file_that_cannot_be_read_is_an_error_and_is_not_touched(room: MachineRoom) -> None:
    job = room.add("a")
    job.plan.write_text("schema: autofit.plan/1\nplan: 3\n")
    result = room.night()
    assert result.exit_code == 2
    assert "is not valid autofit.plan/1" in result.records[0].verdict.reason
    assert job.plan.read_text().endswith("plan: 3\n")
    assert room.opened == []


def test_problems_of_the_jobs_file_are_reported_and_the_other_jobs_run(room: MachineRoom) -> None:
    room.add("a")
    room.problems = ("jobs.yaml, line 9: job b: found no plan; expected plan",)
    result = room.night()
    assert result.exit_code == 2
    assert result.problems == room.problems
    assert [record.job for record in result.records] == ["a"]


def test_a_job_without_a_plan_is_tuned_and_then_measured_as_every_night(room: MachineRoom) -> None:
    job = room.add("a", accepted=None, plan="plans/a.yaml")
    result = room.night()
    (record,) = result.records
    assert result.exit_code == 0
    assert (record.tuned, record.replaced) == ("the job has no plan yet", True)
    assert record.proposed == planfile.load(job.plan).plan
    assert record.accepted is not None
    assert record.accepted.plan == record.proposed
    assert len(record.accepted.rates_per_s) == 3
    assert room.benches["a"].regret(record.accepted.plan) < 0.05
    before = room.runs("a")
    room.night()
    assert room.runs("a") - before <= 8
    assert room.records("a")[-1].tuned == ""


def test_a_job_that_cannot_be_tuned_has_no_plan_and_the_reason(room: MachineRoom) -> None:
    room.add("a", accepted=None)
    room.benches["a"].budget_bytes = 2**20
    result = room.night()
    assert result.exit_code == 3
    assert result.records[0].verdict.kind is VerdictKind.ERROR
    assert not (room.folder / "a.yaml").exists()


def regressed(room: MachineRoom, ratio: float = 1.2) -> None:
    """Slows the accepted plan of job a down after six calm nights."""
    for _ in range(6):
        assert room.night().exit_code == 0
    bench = room.benches["a"]
    bench.slower = lambda plan: ratio if plan == faster(bench) else 1.0


def test_a_regression_is_confirmed_tuned_for_and_proposed_once(room: MachineRoom) -> None:
    job = room.add("a")
    regressed(room, 2.0)
    result = room.night()
    (record,) = result.records
    assert result.exit_code == 4
    assert record.verdict.kind is VerdictKind.REGRESSION
    assert record.confirmation is not None
    assert record.tuned.startswith("the accepted plan is slower or needs more memory")
    assert record.proposed == planfile.load(proposals.new_path(job.plan)).plan
    assert record.proposed_gain is not None
    assert record.proposed_gain.low > 1.02
    assert planfile.load(job.plan).plan == faster(room.benches["a"])
    assert any("To use it: autofit nightly accept a" in note for note in record.notes)
    result = room.night()
    assert result.exit_code == 4
    (again,) = result.records
    assert (again.tuned, again.proposed) == ("", None)
    assert any(note.startswith("not tuned again: the accepted plan is slower") for note in again.notes)
    assert any(note.startswith("a.new.yaml of an earlier night waits") for note in again.notes)


def test_auto_replaces_the_plan_and_the_next_night_begins_a_segment(room: MachineRoom) -> None:
    job = room.add("a", accept="auto")
    regressed(room, 2.0)
    (record,) = room.night().records
    assert record.replaced
    assert planfile.load(job.plan).plan == record.proposed
    assert planfile.load(proposals.previous_path(job.plan)).plan == faster(room.benches["a"])
    result = room.night()
    assert result.exit_code == 0
    assert result.records[0].verdict.kind is VerdictKind.CANNOT_COMPARE


@pytest.mark.parametrize(("accept", "code"), [("propose", 4), ("auto", 0)])
def test_a_plan_that_does_not_fit_is_a_regression_until_another_plan_replaces_it(
    accept: str, code: int, room: MachineRoom
) -> None:
    job = room.add("a", accept=accept)
    bench = room.benches["a"]
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY, "tried to allocate 2 GiB")
    result = room.night()
    (record,) = result.records
    assert record.verdict.kind is VerdictKind.DOES_NOT_FIT
    assert record.accepted is None
    assert record.segment is not None
    assert record.proposed is not None
    assert record.proposed_gain is None
    assert result.exit_code == code
    assert proposals.new_path(job.plan).exists() is (accept == "propose")


def test_another_environment_tunes_again_once(room: MachineRoom) -> None:
    room.add("a")
    room.night()
    room.versions["torch"] = "2.14.0"
    (record,) = room.night().records
    assert record.tuned == "the environment changed since the plan was tuned: torch: 2.14.0, was 2.13.0"
    assert room.night().records[0].tuned == ""
    assert room.night(fail_on="change").exit_code in (0, 4)


def test_a_search_that_fails_leaves_the_verdict_and_is_tried_again(room: MachineRoom) -> None:
    room.add("a")
    room.versions["torch"] = "2.14.0"
    room.before_run = stop_at(9, StudyError("the study is gone."))
    (record,) = room.night().records
    assert record.verdict.kind is VerdictKind.CANNOT_COMPARE
    assert record.tuned == ""
    assert any("found no answer: the study is gone" in note for note in record.notes)
    assert room.night().records[0].tuned


def test_a_killed_night_continues_where_it_was(room: MachineRoom) -> None:
    for name in "abc":
        room.add(name)

    class Killed(BaseException):
        pass

    room.before_run = stop_at(12, Killed())
    with pytest.raises(Killed):
        room.night()
    assert [len(room.records(name)) for name in "abc"] == [1, 0, 0]
    room.before_run, room.days = lambda *_: None, -0.9
    result = room.night()
    assert room.opened == ["b", "c"]
    assert [record.job for record in result.records] == ["a", "b", "c"]
    assert {record.night for record in result.records} == {result.night}
    assert room.history.unfinished_night() is None
    room.night()
    assert room.opened == ["a", "b", "c"]


def test_an_interrupt_keeps_what_has_a_verdict_and_says_what_is_unchecked(room: MachineRoom) -> None:
    for name in "abc":
        room.add(name)
    room.before_run = stop_at(12, KeyboardInterrupt("terminated; the same command continues the night"))
    result = room.night()
    assert result.exit_code == 130
    assert [record.job for record in result.records] == ["a"]
    assert result.unchecked == {"b": "the night was interrupted", "c": "the night was interrupted"}
    assert room.history.unfinished_night() == result.night
    assert "terminated; the same command continues the night" in room.said


def test_an_interrupt_while_tuning_keeps_the_verdict(room: MachineRoom) -> None:
    room.add("a")
    room.versions["torch"] = "2.14.0"
    room.before_run = stop_at(11, KeyboardInterrupt())
    result = room.night()
    assert result.exit_code == 130
    (record,) = room.records("a")
    assert record.accepted is not None
    assert (record.tuned, result.unchecked) == ("", {})
    assert record.notes[-1].startswith("interrupted")


def test_two_nights_at_once_are_refused_with_the_holder(room: MachineRoom) -> None:
    room.add("a")
    pid = os.fork()  # a lock is held by another process
    if pid == 0:
        with locks.held(f"night-{room.file.path.resolve()}", "the jobs file", 0.0):
            (room.folder / "held").touch()
            signal.pause()
    try:
        while not (room.folder / "held").exists():
            pass
        with pytest.raises(Busy, match=rf"the jobs file .*jobs\.yaml is in use: found process {pid} "):
            room.night()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert room.night().exit_code == 0


def test_named_jobs_alone_are_checked_and_leave_an_unfinished_night(room: MachineRoom) -> None:
    room.add("a")
    room.add("b")
    room.before_run = stop_at(12, KeyboardInterrupt())
    interrupted = room.night().night
    room.before_run, room.days = lambda *_: None, -0.5
    assert [record.job for record in room.night(only=("a",)).records] == ["a"]
    assert room.opened == ["a"]
    assert room.history.unfinished_night() == interrupted
    with pytest.raises(UsageError, match="no job 'x'"):
        room.night(only=("x",))


def test_a_dry_run_says_the_order_and_runs_nothing(room: MachineRoom) -> None:
    room.add("a")
    room.night()
    room.add("b", accepted=None)
    order = plan_of_night(room.file, room.history, NightOptions(today=room.today))
    assert [each.job.name for each in order] == ["b", "a"]
    assert order[0].why == "never checked: first tuning, since it has no plan"
    assert order[1].why.endswith("ago (cannot compare): re-check of the accepted plan")


def test_the_command_of_a_job_gets_the_summary_of_its_regression_alone(room: MachineRoom) -> None:
    hook = [sys.executable, "-c", "import sys; open('told', 'a').write(sys.stdin.read())"]
    room.add("a", on_regression=hook)
    room.add("b", on_regression=hook)
    bench = room.benches["a"]
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY)
    result = room.night()
    assert result.notes == ()
    text = (room.folder / "told").read_text()
    assert "# a: does not fit" in text
    assert "b:" not in text


def test_a_command_that_fails_is_a_note_and_the_record_is_kept(room: MachineRoom) -> None:
    room.add("a", on_regression=["./missing"])
    bench = room.benches["a"]
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY)
    result = room.night()
    assert result.exit_code == 4
    assert result.notes == (
        "a: on_regression: the command ./missing could not be started: No such file or directory",
    )
    assert len(room.records("a")) == 1


def test_one_job_gets_its_share_of_the_time_to_tune(room: MachineRoom) -> None:
    for name in "abcd":
        room.add(name, accepted=None)
    result = room.night(time_s=200.0)
    assert len(result.records) == 4
    budgets = [planfile.load(job.plan).budget.time_s for job in room.jobs]
    assert budgets[0] is not None
    assert budgets[0] <= 50
