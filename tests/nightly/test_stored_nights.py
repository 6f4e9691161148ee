"""Records in the storage of the studies: durable, in order, beside the studies of `autofit tune`."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autofit.core.errors import StorageError, StudyError
from autofit.core.trial import Purpose
from autofit.nightly.record_text import from_text
from autofit.nightly.stored_nights import read, write
from autofit.study import read_studies
from autofit.study.location import Place
from tests.nightly.history_samples import record
from tests.study.samples import PLAN, in_optuna, measured, reopen, rewrite, storage_at


def ids(path: Path | str, job: str = "gpt") -> list[str]:
    found = [from_text(text) for text in read(Place.of(path)).texts.get(job, ())]
    return [each.id for each in found if each is not None]


def test_records_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    write(Place.of(path), [record(2), record(1), record(1, "resnet")])
    write(Place.of(path), [record(3)])
    found = read(Place.of(path))
    assert found.away == ""
    assert list(found.texts) == ["gpt", "resnet"]
    assert [from_text(text) for text in found.texts["gpt"]] == [record(2), record(1), record(3)]
    assert list(read(Place.of(path), {"resnet"}).texts) == ["resnet"]


def test_optuna_shows_throughput_and_verdict(journal: Path) -> None:
    write(Place.of(journal), [record(2), record(3, accepted=None)])
    first, second = in_optuna(journal, "nightly/gpt")
    assert (first.state, first.value, first.user_attrs["verdict"]) == (TrialState.COMPLETE, 101.5, "steady")
    assert (second.state, second.values) == (TrialState.FAIL, None)


def test_a_record_is_written_once(journal: Path) -> None:
    for _ in range(2):
        write(Place.of(journal), [record(1), record(1), record(2)])
    assert ids(journal) == ["gpt-1", "gpt-2"]


def test_a_file_that_is_missing_or_empty_has_no_records(tmp_path: Path, journal: Path) -> None:
    (tmp_path / "empty.journal").touch()
    for path in (tmp_path / "absent.journal", tmp_path / "empty.journal", journal):
        assert read(Place.of(path)).texts == {}
    assert not (tmp_path / "absent.journal").exists()
    write(Place.of(tmp_path / "empty.journal"), [record(1)])
    assert ids(tmp_path / "empty.journal") == ["gpt-1"]


def test_a_damaged_record_is_lost_alone(journal: Path) -> None:
    write(Place.of(journal), [record(number) for number in range(3)])
    rewrite(journal, '\\"id\\": \\"gpt-1\\"', '\\"id\\": 1')
    assert ids(journal) == ["gpt-0", "gpt-2"]
    write(Place.of(journal), [record(3)])
    assert ids(journal) == ["gpt-0", "gpt-2", "gpt-3"]


@pytest.mark.parametrize("where", ['"autofit.schema":"{}"', '\\"schema\\": \\"{}\\"'])
def test_records_of_a_newer_version_are_refused_and_not_touched(journal: Path, where: str) -> None:
    write(Place.of(journal), [record(1)])
    rewrite(journal, where.format("autofit.night/1"), where.format("autofit.night/2"))
    before = journal.read_bytes()
    for use in (lambda: read(Place.of(journal)), lambda: write(Place.of(journal), [record(2)])):
        with pytest.raises(
            StudyError, match=r"nightly/gpt at .*s\.journal has records of the schema autofit\.night/2; expected"
        ):
            use()
    assert journal.read_bytes() == before


def test_what_is_not_of_autofit_is_refused_and_not_touched(tmp_path: Path) -> None:
    text, other = tmp_path / "text.journal", tmp_path / "other.journal"
    text.write_text("mine")
    study = optuna.create_study(storage=storage_at(other), study_name="nightly/gpt")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    for path, words in ((text, "a file of another kind"), (other, "was not made by autofit: found no records")):
        before = path.read_bytes()
        for use in (partial(read, Place.of(path)), partial(write, Place.of(path), [record(1)])):
            with pytest.raises(StudyError, match=words):
                use()
        assert path.read_bytes() == before


def test_a_storage_that_cannot_be_reached_is_away_and_no_error_of_reading(tmp_path: Path) -> None:
    place = Place.of(f"sqlite:///{tmp_path}/absent/s.db")
    assert "found OperationalError: unable to open database file" in read(place).away
    with pytest.raises(StorageError, match=r"could not be written: found .*; expected a storage that answers"):
        write(place, [record(1)])


@pytest.mark.parametrize("url", ["nosuch://me:hunter2@h/n", "sqlite+nosuch:///x", "postgresql+nosuch://me:hunter2@h/n"])
def test_a_url_that_is_wrong_is_an_error_without_its_secrets(url: str) -> None:
    with pytest.raises(StudyError) as caught:
        read(Place.of(url))
    assert "hunter2" not in str(caught.value)


def test_a_database_url_is_read_and_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    assert read(Place.of(url)).texts == {}
    for _ in range(2):
        write(Place.of(url), [record(1)])
    assert ids(url) == ["gpt-1"]


def test_tune_and_report_work_on_the_same_storage(journal: Path) -> None:
    study = reopen(journal)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    write(Place.of(journal), [record(1)])
    again = reopen(journal)
    assert (len(again.earlier()), again.notes) == (1, ())
    again.finish(again.begin(PLAN, Purpose.PROBE), measured())
    assert [(each.name, len(each.trials), each.unreadable) for each in read_studies(journal)] == [("net", 2, 0)]
    assert ids(journal) == ["gpt-1"]


def test_a_storage_with_nights_only_has_no_study_to_report(tmp_path: Path) -> None:
    write(Place.of(tmp_path / "s.journal"), [record(1)])
    with pytest.raises(StudyError, match=r"found 1 studies, none made by this version"):
        read_studies(tmp_path / "s.journal")


def _write_each(path: Path, first: int) -> None:
    for number in range(first, first + 8):
        write(Place.of(path), [record(number)])


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
    assert sorted(ids(path)) == sorted(f"gpt-{first + number}" for first in (0, 100) for number in range(8))
    assert [trial.number for trial in in_optuna(path, "nightly/gpt")] == list(range(16))


def _die_in_write(path: Path, number: int) -> None:
    left, append = [number], JournalFileBackend.append_logs

    def count(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, logs)

    JournalFileBackend.append_logs = count  # type: ignore[method-assign]
    write(Place.of(path), [record(1)])


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_kill_9_at_each_write_of_a_first_append_loses_that_record_alone(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.journal"
        process = started(_die_in_write, path, number)
        process.join(60)
        if process.exitcode == 0:
            break
        assert ids(path) in ([], ["gpt-1"])
        write(Place.of(path), [record(1), record(2)])
        assert ids(path) == ["gpt-1", "gpt-2"]
    assert 3 <= number < 20
    assert ids(path) == ["gpt-1"]


def _append_and_say(path: Path, pipe: int) -> None:
    for number in range(10_000):
        write(Place.of(path), [record(number)])
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
    found = read(Place.of(path)).texts["gpt"]
    assert ids(path)[: last + 1] == [f"gpt-{number}" for number in range(last + 1)]
    assert len(found) <= last + 2
    write(Place.of(path), [record(20_000)])
    assert ids(path)[-1] == "gpt-20000"


def test_a_first_night_is_read_without_optuna_and_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from autofit.nightly.stored_nights import read; from autofit.study.location import Place;"
        "print(len(read(Place.of(sys.argv[1])).texts));"
        "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "new" / "s.journal")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "[]"]
