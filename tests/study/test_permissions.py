"""A study belongs to its user alone, and is a study."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from autofit.core.errors import StudyError
from autofit.core.outcome import Outcome
from autofit.core.trial import Purpose
from tests.study.samples import PLAN, measured, reopen


def refused(location: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        reopen(location)
    text = str(caught.value)
    assert "found" in text
    assert "expected" in text
    return text


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    assert reopen(tmp_path / "s.db").earlier() == ()


def test_other_things_than_a_study_are_refused_and_left_alone(db: Path, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("my thesis, the only copy\n")
    os.symlink(db, tmp_path / "link.db")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.db")
    os.mkfifo(tmp_path / "pipe.db")
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("create table photos (name text)")
    connection.close()
    (tmp_path / "torn.db").write_bytes(db.read_bytes()[:50])
    assert "found a directory" in refused(tmp_path)
    assert "found a file that is not an SQLite database" in refused(tmp_path / "text.db")
    assert "found a symbolic link" in refused(tmp_path / "link.db")
    assert "found a symbolic link" in refused(tmp_path / "dangling.db")
    assert "found a special file" in refused(tmp_path / "pipe.db")
    assert "found an SQLite database of another program" in refused(tmp_path / "other.db")
    assert "found a damaged SQLite database" in refused(tmp_path / "torn.db")
    assert "NotADirectoryError" in refused(tmp_path / "text.db" / "s.db")
    assert (tmp_path / "text.db").read_text() == "my thesis, the only copy\n"
    assert not (tmp_path / "nowhere").exists()
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        assert connection.execute("select * from sqlite_master").fetchall()[1:] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_refused(db: Path) -> None:
    db.chmod(0o400)
    assert "may not read and write" in refused(db)


def run(path: Path, outcome: Outcome, **options: object) -> None:
    study = reopen(path, **options)  # type: ignore[arg-type]  # the caller's keywords are those of reopen
    study.finish(study.begin(PLAN, Purpose.PROBE), outcome)


def test_the_file_and_its_directories_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "s.db"
    run(path, measured())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in (path.parent, path.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["s.db"]
