"""Records in the storage of the studies: durable, in order, beside the studies of `autofit tune`."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from autofit.core.errors import StudyError
from autofit.core.trial import Purpose
from autofit.nightly.record_text import from_text
from autofit.nightly.stored_nights import read, write
from autofit.study.location import Place
from autofit.study.reading import read_studies
from tests.nightly.history_samples import record
from tests.study.samples import PLAN, in_optuna, measured, reopen, storage_at
from tests.study.test_tables import hot_journal


def ids(path: Path | str, job: str = "gpt") -> list[str]:
    found = [from_text(text) for text in read(Place.of(path)).texts.get(job, ()) if text is not None]
    return [each.id for each in found if each is not None]


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount >= 1


def test_records_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    write(Place.of(path), [record(2), record(1), record(1, "resnet")])
    write(Place.of(path), [record(3)])
    found = read(Place.of(path))
    assert found.away == ""
    assert list(found.texts) == ["gpt", "resnet"]
    assert [from_text(text or "") for text in found.texts["gpt"]] == [record(2), record(1), record(3)]
    assert list(read(Place.of(path), {"resnet"}).texts) == ["resnet"]


def test_optuna_shows_throughput_and_verdict(db: Path) -> None:
    write(Place.of(db), [record(2), record(3, accepted=None)])
    first, second = in_optuna(db, "nightly/gpt")
    assert (first.state, first.value, first.user_attrs["verdict"]) == (TrialState.COMPLETE, 101.5, "steady")
    assert (second.state, second.values) == (TrialState.FAIL, None)


def test_a_record_is_written_once(db: Path) -> None:
    for _ in range(2):
        write(Place.of(db), [record(1), record(1), record(2)])
    assert ids(db) == ["gpt-1", "gpt-2"]


def test_a_file_that_is_missing_or_empty_has_no_records(tmp_path: Path, db: Path) -> None:
    (tmp_path / "empty.db").touch()
    for path in (tmp_path / "absent.db", tmp_path / "empty.db", db):
        assert read(Place.of(path)).texts == {}
    assert not (tmp_path / "absent.db").exists()
    write(Place.of(tmp_path / "empty.db"), [record(1)])
    assert ids(tmp_path / "empty.db") == ["gpt-1"]


@pytest.mark.parametrize(
    "statement",
    [
        "update trial_user_attributes set value_json = replace(value_json, '99.25', '98.25') where {}",
        "update trial_user_attributes set value_json = substr(value_json, 1, 40) where {}",
        "update trial_user_attributes set value_json = cast(x'ff41ff' as text) where {}",
        "delete from trial_user_attributes where {}",
        "delete from trial_user_attributes where trial_id = 2 and key = 'autofit.night.sum'",
    ],
)
def test_a_damaged_record_is_lost_alone(db: Path, statement: str) -> None:
    write(Place.of(db), [record(number) for number in range(3)])
    change(db, statement.format("trial_id = 2 and key = 'autofit.night'"))
    assert [text is None for text in read(Place.of(db)).texts["gpt"]] == [False, True, False]
    assert ids(db) == ["gpt-0", "gpt-2"]
    write(Place.of(db), [record(3)])
    assert ids(db) == ["gpt-0", "gpt-2", "gpt-3"]


@pytest.mark.parametrize("value", ["'x'", "'3'", "cast(x'ff' as text)"])
def test_a_damaged_schema_costs_no_record(db: Path, value: str) -> None:
    write(Place.of(db), [record(1)])
    change(db, f"update study_user_attributes set value_json = {value} where key = 'autofit.schema' and study_id = 2")
    assert ids(db) == ["gpt-1"]
    write(Place.of(db), [record(2)])
    assert ids(db) == ["gpt-1", "gpt-2"]


NEWER = [
    "update study_user_attributes set value_json = '\"autofit.night/2\"' where study_id = 2",
    "update trial_user_attributes set value_json = replace(value_json, 'autofit.night/1', 'autofit.night/2')",
]


@pytest.mark.parametrize("statement", NEWER)
def test_records_of_a_newer_version_are_refused_and_not_touched(db: Path, statement: str) -> None:
    write(Place.of(db), [record(1)])
    change(db, statement)
    before = db.read_bytes()
    for use in (lambda: read(Place.of(db)), lambda: write(Place.of(db), [record(2)])):
        with pytest.raises(
            StudyError, match=r"the job gpt in .*s\.db has records of the schema autofit\.night/2; expected"
        ):
            use()
    assert db.read_bytes() == before


def foreign_file(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.db"
    if kind == "text":
        path.write_text("mine")
    elif kind == "tables":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("create table something (x)")
    else:
        study = optuna.create_study(storage=storage_at(path), study_name="nightly/gpt")
        study.add_trial(optuna.trial.create_trial(value=1.0))
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [("text", "not an SQLite"), ("tables", "another program"), ("study", "was not made by autofit: found no records")],
)
def test_what_is_not_of_autofit_is_refused_and_not_touched(tmp_path: Path, kind: str, words: str) -> None:
    path = foreign_file(tmp_path, kind)
    before = path.read_bytes()
    for use in (lambda: read(Place.of(path)), lambda: write(Place.of(path), [record(1)])):
        with pytest.raises(StudyError, match=words):
            use()
    assert path.read_bytes() == before


def test_a_storage_that_cannot_be_reached_is_away_and_no_error_of_reading(tmp_path: Path) -> None:
    for location in (f"sqlite+pysqlite:////{tmp_path}/absent/s.db", tmp_path):
        place = Place.of(location)
        assert read(place).away
        with pytest.raises(
            StudyError, match=r"is not available: found .*; expected a storage that answers|found a directory"
        ):
            write(place, [record(1)])


@pytest.mark.parametrize("url", ["nosuch://me:hunter2@h/n", "sqlite+nosuch:///x", "postgresql+nosuch://me:hunter2@h/n"])
def test_a_url_that_is_wrong_is_an_error_without_its_secrets(url: str) -> None:
    with pytest.raises(StudyError) as caught:
        read(Place.of(url))
    assert "hunter2" not in str(caught.value)


def test_a_database_url_is_read_and_written(tmp_path: Path) -> None:
    url = f"sqlite+pysqlite:///{tmp_path / 's.db'}"
    assert read(Place.of(url)).texts == {}
    write(Place.of(url), [record(1)])
    assert ids(url) == ids(tmp_path / "s.db") == ["gpt-1"]


def test_tune_and_report_work_on_the_same_storage(db: Path) -> None:
    study = reopen(db)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    write(Place.of(db), [record(1)])
    again = reopen(db)
    assert (len(again.earlier()), again.notes) == (1, ())
    again.finish(again.begin(PLAN, Purpose.PROBE), measured())
    assert [(each.name, len(each.trials), each.unreadable) for each in read_studies(db)] == [("net", 2, 0)]
    assert ids(db) == ["gpt-1"]
    change(db, "update trial_user_attributes set value_json = '{' where key = 'autofit.night'")
    assert [each.unreadable for each in read_studies(db)] == [0]
    assert len(reopen(db).earlier()) == 2


def test_a_storage_with_nights_only_has_no_study_to_report(tmp_path: Path) -> None:
    write(Place.of(tmp_path / "s.db"), [record(1)])
    with pytest.raises(StudyError, match=r"found studies of the schema autofit\.night/1; expected autofit\.study/1"):
        read_studies(tmp_path / "s.db")


def test_what_a_killed_process_left_half_written_is_rolled_back(db: Path, tmp_path: Path) -> None:
    write(Place.of(db), [record(1)])
    (tmp_path / "killed").mkdir()
    path = hot_journal(db, tmp_path / "killed")
    assert ids(path) == ["gpt-1"]
    write(Place.of(path), [record(2)])
    assert ids(path) == ["gpt-1", "gpt-2"]


def _write_each(path: Path, first: int) -> None:
    for number in range(first, first + 8):
        write(Place.of(path), [record(number)])


def started(target: Any, *arguments: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_two_processes_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    processes = [started(_write_each, path, first) for first in (0, 100)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(ids(path)) == sorted(f"gpt-{first + number}" for first in (0, 100) for number in range(8))
    assert [trial.number for trial in in_optuna(path, "nightly/gpt")] == list(range(16))


def _die_in_commit(path: Path, number: int) -> None:
    left = [number]

    def count(_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "commit", count)
    write(Place.of(path), [record(1)])


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_kill_9_at_each_commit_of_a_first_append_loses_that_record_alone(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.db"
        process = started(_die_in_commit, path, number)
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
    path = tmp_path / "s.db"
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
    assert None not in found
    assert ids(path)[: last + 1] == [f"gpt-{number}" for number in range(last + 1)]
    assert len(found) <= last + 2
    write(Place.of(path), [record(20_000)])
    assert ids(path)[-1] == "gpt-20000"


def test_a_file_is_read_without_optuna_and_torch(db: Path) -> None:
    write(Place.of(db), [record(1)])
    code = (
        "import sys; from autofit.nightly.stored_nights import read; from autofit.study.location import Place;"
        "print(len(read(Place.of(sys.argv[1])).texts['gpt']));"
        "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(db)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
