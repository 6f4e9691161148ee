"""One job in one night: what is opened, measured, judged, tuned again and replaced, and in which time."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from autofit import locks, planfile
from autofit.core.budget import Clock
from autofit.core.errors import (
    Busy,
    StudyError,
)
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.nightly import job_check, outputs, retune
from autofit.nightly.job_check import opened
from autofit.nightly.jobs import FOLDER, Job
from autofit.nightly.records import VerdictKind, to_text
from autofit.probing.remote.bench import Target
from autofit.study.splits import TrainingSplits, places, write
from tests.fakes import always
from tests.nightly.benches import faster
from tests.nightly.nights import MachineRoom, stop_at


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    return MachineRoom(tmp_path)


def test_a_plan_file_that_cannot_be_read_is_an_error_and_is_not_touched(room: MachineRoom) -> None:
    job = room.add("a")
    job.plan.write_text("schema: autofit.plan/1\nplan: 3\n")
    result = room.night()
    assert result.exit_code == 2
    assert "is not valid autofit.plan/1" in result.records[0].verdict.reason
    assert job.plan.read_text().endswith("plan: 3\n")
    assert room.opened == []


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
    assert record.proposed == planfile.load(retune.new_path(job.plan)).plan
    assert record.proposed_gain is not None
    assert record.proposed_gain.low > 1.02
    assert planfile.load(job.plan).plan == faster(room.benches["a"])
    assert any("To use it: autofit nightly accept a" in note for note in record.notes)
    result = room.night()
    assert result.exit_code == 4
    (again,) = result.records
    assert (again.tuned, again.proposed) == ("", None)
    assert any(note.startswith("not tuned again: the accepted plan is slower") for note in again.notes)
    assert any(note.startswith("a.new.yaml was found by an earlier night") for note in again.notes)


def test_a_regression_is_searched_for_although_the_study_knows_an_answer(room: MachineRoom) -> None:
    """A slowdown of 20 % contradicts no trial of the study, so that its answer would only be proven again."""
    room.add("a", accepted=None)
    for _ in range(6):
        assert room.night().exit_code == 0
    bench = room.benches["a"]
    accepted, before = room.records("a")[-1].segment, len(bench.runs)
    assert accepted is not None
    bench.slower = lambda plan: 1.2 if plan.key == accepted.plan else 1.0
    (record,) = room.night().records
    assert record.tuned.startswith("the accepted plan is slower")
    searched = [purpose for _, purpose in bench.runs[before:]]
    assert searched.count(Purpose.BLOCK) > 30  # a race, beside the rounds of the re-check
    assert record.proposed is not None


def test_auto_replaces_the_plan_and_the_next_night_begins_a_segment(room: MachineRoom) -> None:
    job = room.add("a", accept="auto")
    regressed(room, 2.0)
    (record,) = room.night().records
    assert record.replaced
    assert planfile.load(job.plan).plan == record.proposed
    assert planfile.load(retune.previous_path(job.plan)).plan == faster(room.benches["a"])
    result = room.night()
    assert result.exit_code == 0
    assert result.records[0].verdict.kind is VerdictKind.CANNOT_COMPARE


@pytest.mark.parametrize("accept", ["propose", "auto"])
def test_the_better_plan_of_an_earlier_night_does_not_outlive_another_search(
    accept: str, room: MachineRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = room.add("a", accept=accept)
    earlier = retune.new_path(job.plan)
    earlier.write_bytes(job.plan.read_bytes())
    searched = retune.retune
    if accept == "propose":  # as if the search had found nothing better
        monkeypatch.setattr(retune, "retune", lambda *args, **named: replace(searched(*args, **named), better=False))
    regressed(room, 2.0)
    (record,) = room.night().records
    assert record.tuned
    assert not earlier.exists()
    assert any("was deleted" in note for note in record.notes) is (accept == "propose")


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
    assert retune.new_path(job.plan).exists() is (accept == "propose")


def test_a_plan_that_ran_out_of_memory_in_a_training_is_replaced_and_said_once(room: MachineRoom) -> None:
    job = room.add("a", accept="auto")
    accepted = planfile.load(job.plan)
    left = TrainingSplits(
        training="t",
        plan=accepted.plan,
        environment=room.briefing("a").environment,
        micro_batches=3,
        largest_samples=accepted.plan.micro_batch_size,
        first_at="2026-11-01T02:03:04+00:00",
        last_at="2026-11-01T02:03:04+00:00",
    )
    assert write(places(room.file.history, job.plan), left) == ""
    (record,) = room.night().records
    assert record.tuned.startswith("a training with this plan ran out of memory: 3 of its micro batches")
    assert record.replaced
    assert record.proposed == planfile.load(job.plan).plan != accepted.plan
    assert room.night().records[0].tuned == ""


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


def test_the_texts_of_a_record_are_short_enough_for_any_database(room: MachineRoom) -> None:
    room.add("a")
    room.errors["a"] = StudyError("\ud83d " * 90_000)
    room.night()
    (record,) = room.records("a")
    assert record.verdict.kind is VerdictKind.ERROR
    assert len(to_text(record)) < 2**15


def test_one_job_gets_its_share_of_the_time_to_tune(room: MachineRoom) -> None:
    for name in "abcd":
        room.add(name, accepted=None)
    result = room.night(time_s=200.0)
    assert len(result.records) == 4
    budgets = [planfile.load(job.plan).budget.time_s for job in room.jobs]
    assert budgets[0] is not None
    assert budgets[0] <= 50


def test_a_plan_that_does_not_end_a_block_any_more_is_a_regression_in_every_output(room: MachineRoom) -> None:
    job = room.add("a", time="2min")
    room.night()
    plan, bench = planfile.load(job.plan).plan, room.benches["a"]

    def hangs(purpose: Purpose) -> Outcome | None:
        if purpose is not Purpose.BLOCK:
            return None
        room.time.advance(120.0)
        return Outcome(status=Status.TIMED_OUT, reason="not finished in the time that was left")

    bench.faults[plan.key] = hangs
    result = room.night()
    (record,) = result.records
    assert (record.verdict.kind, record.accepted, result.exit_code) == (VerdictKind.REGRESSION, None, 4)
    assert "slower than" in record.verdict.reason
    history = {"a": room.records("a")}
    for rendered in (outputs.to_text, outputs.to_markdown, outputs.to_html):
        assert "slower than" in rendered(result, history)


class FakeRemote:
    """Stands in for the child process: claims a device as a child does, and remembers what it was given."""

    made: Any = None

    def __init__(self, target: Target, **given: Any) -> None:
        type(self).made = self
        self.target, self.given, self.folder, self.ended = target, given, Path.cwd(), ""
        claim: Callable[[str, str], None] = given["claim"]
        claim("device-of-this-test", "the GPU")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended = "killed" if error is not None else "closed"


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> type[FakeRemote]:
    kind = type("Remote", (FakeRemote,), {})
    monkeypatch.setattr(job_check, "RemoteBench", kind)
    return kind


def job(folder: Path) -> Job:
    data = {"name": "gpt", "workload": "train.py:make", "plan": "gpt.yaml", "args": {"depth": 4}}
    return Job.model_validate(data, context={FOLDER: folder})


@contextmanager
def other_holder(key: str, folder: Path) -> Iterator[int]:
    """Has another process hold a lock."""
    pid = os.fork()
    if pid == 0:
        with locks.held(key, "it", 0.0):
            (folder / "held").touch()
            signal.pause()
    try:
        while not (folder / "held").exists():
            pass
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_job_is_opened_in_the_folder_of_the_jobs_file(remote: Any, tmp_path: Path) -> None:
    before, clock = Path.cwd(), Clock()
    with opened(job(tmp_path), clock, lambda text: None, tmp_path) as bench:
        given: Any = bench
        assert given is remote.made
        assert Path.cwd() == tmp_path  # a child that replaces the first one starts here too
    assert Path.cwd() == before
    made = remote.made
    assert (made.folder, made.ended) == (tmp_path, "closed")
    assert made.target.name == f"{tmp_path}/train.py:make"
    assert made.target.arguments == {"depth": 4}
    assert made.given["clock"] is clock
    assert made.given["log"] == tmp_path / ".autofit" / "gpt.log"


def test_a_failure_inside_ends_the_child_and_releases_the_device(remote: Any, tmp_path: Path) -> None:
    before = Path.cwd()
    with pytest.raises(ValueError, match="boom"), opened(job(tmp_path), Clock(), lambda text: None, tmp_path):
        raise ValueError("boom")
    assert remote.made.ended == "killed"
    assert Path.cwd() == before
    with locks.held("device-of-this-test", "the GPU", 0.0):
        pass


def test_a_busy_device_is_waited_for_within_half_of_the_time(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        other_holder("device-of-this-test", tmp_path) as pid,
        pytest.raises(Busy, match=rf"the GPU is in use: found process {pid} "),
        opened(job(tmp_path), Clock(limit_s=0.6), said.append, tmp_path),
    ):
        raise AssertionError("the device is held by another process")
    assert re.fullmatch(r"waiting up to \d+ ms for the GPU, in use by process .*", said[0])
