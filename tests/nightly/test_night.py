"""A night over simulated jobs: order, budgets, failures that stop no other job, exit codes; and on a Ray cluster."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autofit import locks, planfile
from autofit.core import errors
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
from autofit.nightly.history import History, scheduled
from autofit.nightly.jobs import JobsFile, read_jobs
from autofit.nightly.night import WORST_FIRST, FailOn, NightOptions, code_of, notify, run_on_ray, worst
from autofit.nightly.records import HistorySegment, NightRecord, Verdict, VerdictKind
from tests.cli.processes import TARGETS
from tests.fakes import always
from tests.nightly.benches import faster
from tests.nightly.history_samples import jobs_file
from tests.nightly.nights import MachineRoom, stop_at


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    return MachineRoom(tmp_path)


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
    room.time_s = 10.0
    result = room.night()
    assert [record.job for record in result.records] == ["a", "b"]
    assert result.unchecked == {"c": "the time of the night ran out"}
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


def test_problems_of_the_jobs_file_are_reported_and_the_other_jobs_run(room: MachineRoom) -> None:
    room.add("a")
    room.problems = ("jobs.yaml, line 9: job b: found no plan; expected plan",)
    result = room.night()
    assert result.exit_code == 2
    assert result.problems == room.problems
    assert [record.job for record in result.records] == ["a"]


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


def test_processes_with_different_jobs_run_at_once_and_each_job_is_checked_by_one(room: MachineRoom) -> None:
    room.add("a")
    room.add("b")
    pid = os.fork()  # a lock is held by another process
    if pid == 0:
        with locks.held(f"night-{room.file.path.resolve()}-a", "the job a", 0.0):
            (room.folder / "held").touch()
            signal.pause()
    try:
        while not (room.folder / "held").exists():
            pass
        assert [record.job for record in room.night(only=("b",)).records] == ["b"]
        left = room.night(only=("a",))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (left.records, left.exit_code) == ((), Busy.exit_code)
    assert f"the job a is in use: found process {pid} " in left.unchecked["a"]
    assert [record.job for record in room.night().records] == ["a", "b"]


def test_a_dry_run_says_the_order_and_runs_nothing(room: MachineRoom) -> None:
    room.add("a")
    room.night()
    room.add("b", accepted=None)
    order = scheduled(room.file, room.history, room.today())
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


def test_the_command_of_a_job_also_gets_the_summary_of_an_error(room: MachineRoom) -> None:
    room.add("a", on_regression=[sys.executable, "-c", "import sys; open('told', 'a').write(sys.stdin.read())"])
    room.errors["a"] = UserCodeError("the function make_workload failed: ModuleNotFoundError", "")
    assert room.night().exit_code == UserCodeError.exit_code
    assert "make_workload failed" in (room.folder / "told").read_text()


def test_a_command_that_fails_is_a_note_and_the_record_is_kept(room: MachineRoom) -> None:
    room.add("a", on_regression=["./missing"])
    bench = room.benches["a"]
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY)
    result = room.night()
    assert result.exit_code == 4
    assert result.notes == ("a: on_regression: the command ./missing could not be started: No such file or directory",)
    assert len(room.records("a")) == 1


SEGMENT = HistorySegment(workload="w", device="d", driver="", torch="2", protocol=1, plan="{}")


def record(kind: VerdictKind, changed: tuple[str, ...] = (), **fields: object) -> NightRecord:
    verdict = Verdict(kind=kind, reason="why", changed=changed)
    return NightRecord.model_validate({"id": "a", "job": "j", "night": "n", "at": "t", "verdict": verdict} | fields)


def test_every_exit_code_of_an_error_has_its_place() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AutofitError)]
    assert {kind.exit_code for kind in kinds} | {0, 4, 130} == set(WORST_FIRST)


@pytest.mark.parametrize(
    ("codes", "expected"), [((), 0), ((0, 4, 6), 4), ((4, 5), 5), ((0, 6, 7), 6), ((2, 5, 4), 2), ((130, 1), 130)]
)
def test_the_worst_code_wins(codes: tuple[int, ...], expected: int) -> None:
    assert worst(codes) == expected


@pytest.mark.parametrize(
    ("found", "regression", "change"),
    [
        (record(VerdictKind.STEADY), 0, 0),
        (record(VerdictKind.REGRESSION), 4, 4),
        (record(VerdictKind.FASTER), 0, 4),
        (record(VerdictKind.CANNOT_COMPARE), 0, 0),
        (record(VerdictKind.CANNOT_COMPARE, changed=("torch: 2.14, was 2.13",)), 0, 4),
        (record(VerdictKind.STEADY, proposed=Plan()), 0, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT), 4, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT, proposed=Plan()), 4, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT, proposed=Plan(), replaced=True), 0, 4),
        (record(VerdictKind.ERROR, segment=SEGMENT), 4, 4),  # the plan fails for another reason than memory
        (record(VerdictKind.ERROR), 0, 0),  # the job was not opened; its error has a code of its own
    ],
)
def test_what_counts_as_a_regression_and_as_a_change(found: NightRecord, regression: int, change: int) -> None:
    asked: list[tuple[FailOn, int]] = [("regression", regression), ("change", change), ("never", 0)]
    assert [code_of(found, fail_on) for fail_on, _ in asked] == [code for _, code in asked]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_gets_the_text_in_the_folder_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    code = "import sys, pathlib; pathlib.Path('said').write_text(sys.stdin.read() + '|'.join(sys.argv[1:]))"
    assert notify([*python(code), "$HOME", "a b;"], "# gpt: regression\n", tmp_path) == ""
    assert (tmp_path / "said").read_text() == "# gpt: regression\n$HOME|a b;"


def test_a_relative_program_is_relative_to_the_folder(tmp_path: Path) -> None:
    script = tmp_path / "notify"
    script.write_text("#!/bin/sh\ncat > said\n")
    script.chmod(0o700)
    assert notify(["./notify"], "text", tmp_path) == ""
    assert (tmp_path / "said").read_text() == "text"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["./missing"], "the command ./missing could not be started: No such file or directory"),
        (python("import sys; sys.exit(3)"), f"the command {sys.executable} ended with exit code 3"),
        (python("raise ValueError('password=hunter2 is wrong')"), "ended with exit code 1"),
        (["a\0b"], "could not be started: embedded null byte"),
    ],
)
def test_a_command_that_fails_is_a_note_without_secrets(command: list[str], expected: str, tmp_path: Path) -> None:
    found = notify(command, "text", tmp_path)
    assert expected in found
    assert "hunter2" not in found


def test_a_command_that_does_not_read_its_input_is_no_failure(tmp_path: Path) -> None:
    assert notify(["true"], "x" * 2**20, tmp_path) == ""


def test_a_command_that_hangs_is_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    assert "did not end within 1 s and was killed" in notify(["sleep", "60"], "text", tmp_path, patience_s=1.0)
    assert time.monotonic() - began < 20


def test_while_the_history_cannot_be_written_the_night_goes_on_and_says_so(room: MachineRoom) -> None:
    (room.folder / "server").mkdir()
    room.location = f"sqlite:///{room.folder}/server/study.db"
    room.start -= timedelta(days=1)  # the night that loses its history is that of today
    room.add("a")
    room.add("b")
    room.night()
    runs = [12]

    def lose(job: str, plan: Plan, purpose: Purpose) -> None:
        runs[0] -= 1
        if runs[0] == 0:
            (room.folder / "server").rename(room.folder / "gone")

    room.before_run = lose
    result = room.night()
    (room.folder / "gone").rename(room.folder / "server")
    assert [record.job for record in result.records] == ["a", "b"]
    assert result.exit_code == StudyError.exit_code
    assert "not in the history: the records of b. the study at sqlite:///" in result.notes[0]
    assert [len(room.records(name)) for name in "ab"] == [2, 1]
    room.before_run = lambda job, plan, purpose: None
    again = room.night()  # the same command, once the database is there again
    assert (again.night, again.exit_code) == (result.night, 0)
    assert [len(room.records(name)) for name in "ab"] == [2, 2], "the job whose record was missing is checked again"


def test_without_ray_the_command_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    jobs = read_jobs(jobs_file(tmp_path, "jobs:\n  - {name: a, workload: a.py, plan: a.yaml}\n"))
    with pytest.raises(UsageError, match=r"found no Ray; .* pip install 'torch-autofit\[ray\]'"):
        run_on_ray(jobs, History(jobs.history, jobs.mark), NightOptions())


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two machines of a local cluster, each with one processor and one GPU in name."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    made.machines = [made.add_node(num_cpus=1, num_gpus=1) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def file_of(folder: Path, *jobs: dict[str, Any]) -> JobsFile:
    defaults = {"device": "cpu", "memory": "64MiB", "strategies": ["batching"], "time": "20s"}
    path = folder / "jobs.yaml"
    path.write_text(json.dumps({"schema": "autofit.jobs/1", "defaults": defaults, "jobs": jobs}))
    return read_jobs(path)


@pytest.mark.slow
@pytest.mark.leaves("Ray keeps threads and descriptors until the process ends")
def test_each_job_is_a_task_and_a_job_whose_machine_is_killed_is_checked_on_the_other(
    cluster: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "opened"
    jobs = file_of(
        tmp_path,
        *({"name": name, "workload": f"{TARGETS}:make_slow", "plan": f"{name}.yaml", "args": {"marker": str(marker)}}
          for name in "ab"),
        {"name": "bad", "workload": f"{TARGETS}:make_failing", "plan": "bad.yaml", "gpus": 0},
    )  # fmt: skip

    def kill() -> None:
        while not marker.exists():
            time.sleep(0.05)
        cluster.remove_node(cluster.machines[0], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    said = list[str]()
    result = run_on_ray(jobs, History(jobs.history, jobs.mark), NightOptions(say=said.append))
    killer.join()
    assert {record.job: record.verdict.kind.value for record in result.records} == {
        "a": "cannot compare", "b": "cannot compare", "bad": "error",
    }, said  # fmt: skip
    assert (result.exit_code, result.unchecked) == (5, {})
    for name in "ab":
        assert planfile.load(tmp_path / f"{name}.yaml").environment.device_type == "cpu"
        assert len(History(jobs.history, jobs.mark).of_job(name)) == 1
