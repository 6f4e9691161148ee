"""The history of all jobs: durable and in order, also while its storage is away, and which night is unfinished."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autofit.core.errors import StorageError, StudyError
from autofit.core.trial import Purpose
from autofit.nightly.history import LONGEST_NIGHT, History, read, write
from autofit.nightly.records import NightRecord, from_text
from autofit.study import read_studies
from autofit.study.location import StudyPlace
from tests.nightly.history_samples import record
from tests.study.samples import PLAN, in_optuna, measured, reopen, rewrite, storage_at


class Disk:
    """A folder with the mark of a night, and a database that can go away and return."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / ".autofit" / "jobs.yaml.night"
        self._server, self._gone = folder / "server", folder / "gone"
        self._server.mkdir()
        self.url = f"sqlite:///{self._server / 's.db'}"

    def open(self) -> History:
        return History(self.url, self.mark)

    def go_away(self) -> None:
        self._server.rename(self._gone)

    def come_back(self) -> None:
        self._gone.rename(self._server)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def ids(records: Sequence[NightRecord]) -> list[str]:
    return [each.id for each in records]


def test_a_new_history_is_empty_and_reading_it_creates_nothing(tmp_path: Path) -> None:
    history = History(tmp_path / "new" / "s.journal", tmp_path / ".autofit" / "mark")
    assert (history.jobs(), history.of_job("gpt"), history.notes) == ((), (), ())
    assert history.unfinished_night() is None
    assert list(tmp_path.iterdir()) == []


def test_records_are_returned_at_once_and_by_a_later_call_oldest_first(tmp_path: Path) -> None:
    path, mark = tmp_path / "s.journal", tmp_path / "mark"
    history = History(path, mark)
    for each in (record(3), record(1), record(2, "resnet")):
        history.append(each)
    for found in (history, History(path, mark)):
        assert found.jobs() == ("gpt", "resnet")
        assert found.of_job("gpt") == (record(1), record(3))
        assert found.of_job("resnet") == (record(2, "resnet"),)
        assert (found.of_job("none"), found.notes) == ((), ())
    assert not mark.exists()


def test_times_in_any_zone_are_in_order(tmp_path: Path) -> None:
    history = History(tmp_path / "s.journal", tmp_path / "mark")
    for number, at in enumerate(("2026-11-02T00:30:00+02:00", "2026-11-01T23:00:00Z", "2026-11-01T22:00:00", "soon")):
        history.append(record(number, at=at))
    assert ids(history.of_job("gpt")) == ["gpt-3", "gpt-2", "gpt-0", "gpt-1"]


def test_a_damaged_record_is_lost_alone_and_said(journal: Path, tmp_path: Path) -> None:
    history = History(journal, tmp_path / "mark")
    for number in range(3):
        history.append(record(number))
    rewrite(journal, '\\"id\\": \\"gpt-1\\"', '\\"id\\": 1')
    found = History(journal, tmp_path / "mark")
    assert found.of_job("gpt") == (record(0), record(2))
    assert found.notes == ("left out, since it cannot be read: 1 record of the job gpt",)


def test_a_database_that_goes_away_for_a_while_in_the_night_costs_nothing(disk: Disk) -> None:
    history = disk.open()
    history.append(record(1))
    disk.go_away()
    for number in (2, 3):
        with pytest.raises(StorageError, match="unable to open database file; expected a storage that answers"):
            history.append(record(number))
    assert ids(history.unwritten) == ["gpt-2", "gpt-3"]
    assert ids(history.of_job("gpt")) == ["gpt-1", "gpt-2", "gpt-3"]
    disk.come_back()
    history.append()
    assert history.unwritten == []
    later = disk.open()
    assert ids(later.of_job("gpt")) == ["gpt-1", "gpt-2", "gpt-3"]
    assert (history.notes, later.notes) == ((), ())


def test_a_history_whose_database_is_away_is_an_error(disk: Disk) -> None:
    disk.open().append(record(1))
    disk.go_away()
    with pytest.raises(StorageError, match=r"could not be read: .*expected a storage that answers"):
        disk.open()


def test_a_locked_file_is_written_later(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.study.storages.LOCK_WAIT_S", 0.05)
    history = History(journal, tmp_path / "mark")
    with journal.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="locked"):
            history.append(record(1))
    history.append(record(2))
    assert ids(History(journal, tmp_path / "mark").of_job("gpt")) == ["gpt-1", "gpt-2"]


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_an_incomplete_last_line_is_cut_off_with_a_word_and_costs_no_other_record(
    journal: Path, tmp_path: Path, cut: int
) -> None:
    history = History(journal, tmp_path / "mark")
    for number in (1, 2):
        history.append(record(number))
    os.truncate(journal, journal.stat().st_size - cut)
    history = History(journal, tmp_path / "mark")
    assert ids(history.of_job("gpt"))[0] == "gpt-1"
    history.append(record(3))
    assert "the last line of the study was incomplete, as after a crash, and was cut off" in history.notes
    assert ids(History(journal, tmp_path / "mark").of_job("gpt")) == ["gpt-1", "gpt-3"]


def test_no_message_shows_a_secret(tmp_path: Path) -> None:
    url = f"sqlite+pysqlite:///file:{tmp_path}/absent/s.journal?password=hunter2&uri=true"
    with pytest.raises(StudyError) as caught:
        History(url, tmp_path / "mark")
    assert "hunter2" not in str(caught.value)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from(["append", "away", "back"]), max_size=6))
def test_whatever_happens_to_the_database_each_record_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, events: list[str]
) -> None:
    disk = Disk(tmp_path_factory.mktemp("disk"))
    history, written, away = disk.open(), list[str](), False
    for number, each in enumerate([*events, "back"]):
        if each == "append":
            with suppress(StorageError):
                history.append(record(number))
            written.append(f"gpt-{number}")
        elif each == "away" and not away:
            disk.go_away()
            away = True
        elif each == "back" and away:
            disk.come_back()
            away = False
    history.append()
    assert ids(history.of_job("gpt")) == ids(disk.open().of_job("gpt")) == written


def ago(**age: float) -> str:
    return (datetime.now(UTC) - timedelta(**age)).isoformat(timespec="seconds")


def test_a_night_is_unfinished_until_it_ends(disk: Disk) -> None:
    night = ago(hours=1)
    disk.open().begin_night(night)  # and killed
    history = disk.open()
    assert history.unfinished_night() == night
    history.begin_night(night)
    history.end_night(night)
    assert disk.open().unfinished_night() is None
    assert list(disk.mark.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("age", "resumed"),
    [
        (timedelta(hours=19.9), True), (timedelta(hours=20.1), False),
        (timedelta(hours=-1), True), (timedelta(days=-2), False),
    ],
)  # fmt: skip
def test_an_old_night_is_not_resumed(disk: Disk, age: timedelta, resumed: bool) -> None:
    assert timedelta(hours=20) == LONGEST_NIGHT
    night = ago(seconds=age.total_seconds())
    disk.open().begin_night(night)
    assert disk.open().unfinished_night() == (night if resumed else None)


@pytest.mark.parametrize("night", ["tonight", ""])
def test_a_night_without_a_time_is_not_resumed(disk: Disk, night: str) -> None:
    disk.open().begin_night(night)
    assert disk.open().unfinished_night() is None


def test_the_end_of_another_night_changes_nothing(disk: Disk) -> None:
    night = ago(hours=2)
    disk.open().begin_night(night)
    disk.open().end_night(ago(hours=1))
    assert disk.open().unfinished_night() == night


def test_a_damaged_mark_is_no_night(disk: Disk) -> None:
    disk.open().begin_night(ago(hours=1))
    (mark,) = disk.mark.parent.iterdir()
    assert mark.name == "jobs.yaml.night"
    mark.write_bytes(b"\xff")
    assert disk.open().unfinished_night() is None


def test_a_night_that_cannot_be_marked_runs_and_says_so(disk: Disk) -> None:
    disk.mark.parent.write_text("not a directory")
    history = History(disk.url, disk.mark.parent.parent / "x" / "mark")
    (disk.mark.parent.parent / "x").write_text("not a directory")
    history.begin_night(ago(hours=1))
    assert "if this night is killed, it cannot be resumed" in history.notes[0]
    assert history.unfinished_night() is None


def test_opening_and_reading_do_not_load_torch(journal: Path, tmp_path: Path) -> None:
    History(journal, tmp_path / "mark").append(record(1))
    code = (
        "import sys; from pathlib import Path; from autofit.nightly.history import History;"
        "history = History(sys.argv[1], Path(sys.argv[1] + '.mark'));"
        "print(len(history.of_job('gpt')), history.unfinished_night());"
        "print([m for m in ('torch', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(journal)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["1 None", "[]"]


def stored_ids(path: Path | str, job: str = "gpt") -> list[str]:
    found = [from_text(text) for text in read(StudyPlace.of(path)).get(job, ())]
    return [each.id for each in found if each is not None]


def test_records_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    write(StudyPlace.of(path), [record(2), record(1), record(1, "resnet")])
    write(StudyPlace.of(path), [record(3)])
    found = read(StudyPlace.of(path))
    assert list(found) == ["gpt", "resnet"]
    assert [from_text(text) for text in found["gpt"]] == [record(2), record(1), record(3)]


def test_optuna_shows_throughput_and_verdict(journal: Path) -> None:
    write(StudyPlace.of(journal), [record(2), record(3, accepted=None)])
    first, second = in_optuna(journal, "nightly/gpt")
    assert (first.state, first.value, first.user_attrs["verdict"]) == (TrialState.COMPLETE, 101.5, "steady")
    assert (second.state, second.values) == (TrialState.FAIL, None)


def test_a_record_is_written_once(journal: Path) -> None:
    for _ in range(2):
        write(StudyPlace.of(journal), [record(1), record(1), record(2)])
    assert stored_ids(journal) == ["gpt-1", "gpt-2"]


def test_a_file_that_is_missing_or_empty_has_no_records(tmp_path: Path, journal: Path) -> None:
    (tmp_path / "empty.journal").touch()
    for path in (tmp_path / "absent.journal", tmp_path / "empty.journal", journal):
        assert read(StudyPlace.of(path)) == {}
    assert not (tmp_path / "absent.journal").exists()
    write(StudyPlace.of(tmp_path / "empty.journal"), [record(1)])
    assert stored_ids(tmp_path / "empty.journal") == ["gpt-1"]


def test_a_damaged_record_is_lost_alone(journal: Path) -> None:
    write(StudyPlace.of(journal), [record(number) for number in range(3)])
    rewrite(journal, '\\"id\\": \\"gpt-1\\"', '\\"id\\": 1')
    assert stored_ids(journal) == ["gpt-0", "gpt-2"]
    write(StudyPlace.of(journal), [record(3)])
    assert stored_ids(journal) == ["gpt-0", "gpt-2", "gpt-3"]


def test_records_of_a_newer_version_are_refused_and_not_touched(journal: Path) -> None:
    write(StudyPlace.of(journal), [record(1)])
    rewrite(journal, '"autofit.schema":"autofit.night/1"', '"autofit.schema":"autofit.night/2"')
    before = journal.read_bytes()
    for use in (lambda: read(StudyPlace.of(journal)), lambda: write(StudyPlace.of(journal), [record(2)])):
        with pytest.raises(
            StudyError, match=r"nightly/gpt at .*s\.journal cannot be used: found the schema autofit\.night/2; expected"
        ):
            use()
    assert journal.read_bytes() == before


def test_what_is_not_of_autofit_is_refused_and_not_touched(tmp_path: Path) -> None:
    text, other = tmp_path / "text.journal", tmp_path / "other.journal"
    text.write_text("mine")
    study = optuna.create_study(storage=storage_at(other), study_name="nightly/gpt")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    for path, words in ((text, "a file of another kind"), (other, "found trials but no schema")):
        before = path.read_bytes()
        for use in (partial(read, StudyPlace.of(path)), partial(write, StudyPlace.of(path), [record(1)])):
            with pytest.raises(StudyError, match=words):
                use()
        assert path.read_bytes() == before


def test_a_storage_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    place = StudyPlace.of(f"sqlite:///{tmp_path}/absent/s.db")
    for use in (partial(read, place), partial(write, place, [record(1)])):
        with pytest.raises(StorageError, match=r"found OperationalError: unable to open .*; expected a storage that"):
            use()


@pytest.mark.parametrize("url", ["nosuch://me:hunter2@h/n", "sqlite+nosuch:///x", "postgresql+nosuch://me:hunter2@h/n"])
def test_a_url_that_is_wrong_is_an_error_without_its_secrets(url: str) -> None:
    with pytest.raises(StudyError) as caught:
        read(StudyPlace.of(url))
    assert "hunter2" not in str(caught.value)


def test_a_database_url_is_read_and_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    assert read(StudyPlace.of(url)) == {}
    for _ in range(2):
        write(StudyPlace.of(url), [record(1)])
    assert stored_ids(url) == ["gpt-1"]


def test_tune_and_report_work_on_the_same_storage(journal: Path) -> None:
    study = reopen(journal)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    write(StudyPlace.of(journal), [record(1)])
    again = reopen(journal)
    assert (len(again.earlier()), again.notes) == (1, ())
    again.finish(again.begin(PLAN, Purpose.PROBE), measured())
    assert [(each.name, len(each.trials), each.unreadable) for each in read_studies(journal)] == [("net", 2, 0)]
    assert stored_ids(journal) == ["gpt-1"]


def test_a_storage_with_nights_only_has_no_study_to_report(tmp_path: Path) -> None:
    write(StudyPlace.of(tmp_path / "s.journal"), [record(1)])
    with pytest.raises(StudyError, match=r"found 1 studies, none made by this version"):
        read_studies(tmp_path / "s.journal")


def _write_each(path: Path, first: int) -> None:
    for number in range(first, first + 8):
        write(StudyPlace.of(path), [record(number)])


def started(target: Any, *arguments: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_two_processes_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    processes = [started(_write_each, path, first) for first in (0, 100)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(stored_ids(path)) == sorted(f"gpt-{first + number}" for first in (0, 100) for number in range(8))
    assert [trial.number for trial in in_optuna(path, "nightly/gpt")] == list(range(16))


def _die_in_write(path: Path, number: int) -> None:
    left, append = [number], JournalFileBackend.append_logs

    def count(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, logs)

    JournalFileBackend.append_logs = count  # type: ignore[method-assign]
    write(StudyPlace.of(path), [record(1)])


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_kill_9_at_each_write_of_a_first_append_loses_that_record_alone(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.journal"
        process = started(_die_in_write, path, number)
        process.join(60)
        if process.exitcode == 0:
            break
        assert stored_ids(path) in ([], ["gpt-1"])
        write(StudyPlace.of(path), [record(1), record(2)])
        assert stored_ids(path) == ["gpt-1", "gpt-2"]
    assert 3 <= number < 20
    assert stored_ids(path) == ["gpt-1"]


def _append_and_say(path: Path, pipe: int) -> None:
    for number in range(10_000):
        write(StudyPlace.of(path), [record(number)])
        os.write(pipe, f"{number}\n".encode())


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
@pytest.mark.parametrize("delay_s", [0.0, 0.013, 0.031])
def test_what_was_written_survives_kill_9_in_the_middle_of_a_later_append(tmp_path: Path, delay_s: float) -> None:
    path = tmp_path / "s.journal"
    pipe, end = os.pipe()
    process = started(_append_and_say, path, end)
    os.close(end)
    with open(pipe) as said:
        said.readline()
        time.sleep(delay_s)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        last = int(["0", *said.read().split()][-1])
    found = read(StudyPlace.of(path))["gpt"]
    assert stored_ids(path)[: last + 1] == [f"gpt-{number}" for number in range(last + 1)]
    assert len(found) <= last + 2
    write(StudyPlace.of(path), [record(20_000)])
    assert stored_ids(path)[-1] == "gpt-20000"


def test_a_first_night_is_read_without_optuna_and_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from autofit.nightly.history import read; from autofit.study.location import StudyPlace;"
        "print(len(read(StudyPlace.of(sys.argv[1]))));"
        "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "new" / "s.journal")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "[]"]
