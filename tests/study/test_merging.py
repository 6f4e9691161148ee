"""Studies that were begun in a local file move to the storage of the others."""

from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage

from autofit.core.errors import StudyError
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.study import merging
from autofit.study.location import Place
from autofit.study.merging import merge
from tests.study.samples import PLAN, failed, in_optuna, measured, reopen, run


def test_the_trials_of_a_local_study_are_earlier_trials_of_the_next_run(db: Path, tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    run(db, measured())
    run(local, failed(Status.OUT_OF_MEMORY))
    reopen(local).begin(PLAN, Purpose.PROBE)  # its process was killed
    assert merge(local, Place.of(db)) == 2
    assert not local.exists()
    assert optuna.get_all_study_names(f"sqlite:///{db}") == ["net", "net#2"]
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
    assert (len(in_optuna(db)), local.exists()) == (1, True)
    kept = local.read_bytes()
    assert merge(local, Place.of(db)) == 3
    assert len(in_optuna(db)) == 3
    local.write_bytes(kept)  # killed before the file was deleted
    assert merge(local, Place.of(db)) == 0
    assert optuna.get_all_study_names(f"sqlite:///{db}") == ["net"]


def test_a_storage_that_is_away_keeps_the_file(tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    run(local, measured())
    with pytest.raises(StudyError):
        merge(local, Place.of(f"sqlite+pysqlite:///{tmp_path / 'missing' / 'study.db'}"))
    assert local.exists()
    assert merging.MERGED not in in_optuna(local)[0].user_attrs
