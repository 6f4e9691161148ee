"""A storage is opened where its place says, for its owner alone, and keeps no connection to a file."""

import gc
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage, RDBStorage
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from autofit.core.errors import StudyError
from autofit.study import optuna_storage
from autofit.study.location import Place
from autofit.study.optuna_storage import connect


def test_memory_is_a_storage_of_this_process() -> None:
    assert isinstance(connect(Place.of(None)), InMemoryStorage)


def test_a_file_is_made_for_its_owner_alone_and_is_closed_between_calls(tmp_path: Path) -> None:
    path = tmp_path / "a{b} c.db"
    storage = connect(Place.of(path))
    assert isinstance(storage, RDBStorage)
    assert storage.get_all_studies() == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    gc.collect()
    links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert str(path) not in links


def test_a_file_that_is_not_a_study_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("mine")
    with pytest.raises(StudyError, match="found a file that is not an SQLite database"):
        connect(Place.of(path))
    assert path.read_text() == "mine"


def test_a_url_is_a_database(tmp_path: Path) -> None:
    storage = connect(Place.of(f"sqlite+pysqlite:///{tmp_path / 'url.db'}"))
    assert isinstance(storage, RDBStorage)
    assert storage.get_all_studies() == []
    storage.remove_session()
    storage.engine.dispose()


def failing(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[str]:
    """Makes opening a database fail with these errors, then succeed. Returns the URLs that are opened."""
    left, opened = list(errors), list[str]()

    class Storage(RDBStorage):
        def __init__(self, url: str, **more: Any) -> None:
            opened.append(url)
            if left:
                raise left.pop(0)
            super().__init__(url, **more)

    monkeypatch.setattr(optuna_storage, "RDBStorage", Storage)
    monkeypatch.setattr(optuna_storage, "CREATING_S", (0.0, 0.0, 0.0))
    return opened


def test_a_database_whose_tables_another_process_makes_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cause = Exception("table trial_values already exists")
    errors: list[Exception] = [
        kind("create", {}, cause) for kind in (OperationalError, IntegrityError, ProgrammingError)
    ]
    opened = failing(monkeypatch, *errors)
    storage = optuna_storage.connect(Place.of(f"sqlite:///{tmp_path / 'a.db'}?timeout=3"))
    assert len(opened) == 4
    assert storage.get_all_studies() == []
    optuna_storage.disconnect(storage)


def test_a_database_that_cannot_be_reached_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = failing(monkeypatch, OperationalError("connect", {}, Exception("connection refused")))
    with pytest.raises(OperationalError, match="connection refused"):
        optuna_storage.connect(Place.of(f"sqlite:///{tmp_path / 'a.db'}?timeout=3"))
    assert len(opened) == 1
