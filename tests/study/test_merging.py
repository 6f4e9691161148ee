"""Studies that were begun in a local file move to the storage of the others."""

import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.study import StudyDirection

from autofit.core.errors import StudyError
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.study.location import Place
from autofit.study.merging import read, write
from tests.study.samples import PLAN, failed, in_optuna, measured, reopen, run, storage_at


def merge(path: Path, place: Place) -> int:
    return write(read(path), place)


def test_the_trials_of_a_local_study_are_earlier_trials_of_the_next_run(db: Path, tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    run(db, measured())
    run(local, failed(Status.OUT_OF_MEMORY))
    reopen(local).begin(PLAN, Purpose.PROBE)  # its process was killed
    assert merge(local, Place.of(db)) == 2
    assert optuna.get_all_study_names(storage_at(db)) == ["net", "net#2"]
    assert [trial.outcome.status for trial in reopen(db).earlier()] == [Status.MEASURED, Status.OUT_OF_MEMORY]


def test_a_study_that_is_not_there_keeps_its_name(tmp_path: Path) -> None:
    local, db = tmp_path / "local.db", tmp_path / "shared.db"
    run(local, measured())
    merge(local, Place.of(db))
    run(db, measured())
    assert len(in_optuna(db)) == 2  # the copy is continued


def test_a_merge_that_was_cut_short_is_finished_and_copies_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, db = tmp_path / "local.db", tmp_path / "shared.db"
    for _ in range(3):
        run(local, measured())
    create, left = RDBStorage.create_new_trial, [2]

    def killed(*args: object) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return create(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(RDBStorage, "create_new_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        merge(local, Place.of(db))
    assert len(in_optuna(db)) == 1
    assert merge(local, Place.of(db)) == 3
    assert len(in_optuna(db)) == 3
    assert merge(local, Place.of(db)) == 0  # killed before the file was deleted
    assert optuna.get_all_study_names(storage_at(db)) == ["net"]


def test_a_storage_that_is_away_is_an_error(tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    run(local, measured())
    with pytest.raises(StudyError):
        merge(local, Place.of(f"sqlite+pysqlite:///{tmp_path / 'missing' / 'study.db'}"))
    assert len(in_optuna(local)) == 1


def test_two_machines_that_merge_at_once_take_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, db = tmp_path / "local.db", tmp_path / "shared.db"
    run(local, measured())
    create = RDBStorage.create_new_study

    def late(storage: RDBStorage, directions: list[StudyDirection], name: str | None = None) -> int:
        monkeypatch.setattr(RDBStorage, "create_new_study", create)
        create(storage, directions, name)  # another machine was faster
        return create(storage, directions, name)

    monkeypatch.setattr(RDBStorage, "create_new_study", late)
    assert merge(local, Place.of(db)) == 1
    assert optuna.get_all_study_names(storage_at(db)) == ["net", "net#2"]


def test_what_a_killed_process_left_half_written_is_rolled_back(tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    run(local, measured())
    code = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('pragma cache_size = 1')\n"
        "c.execute('begin immediate')\n"
        "c.execute('create table big (x)')\n"
        "c.executemany('insert into big values (randomblob(4000))', [()] * 200)\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(local)], check=False)
    assert Path(f"{local}-journal").exists()
    assert len(read(local)[0].trials) == 1
