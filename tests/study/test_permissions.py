"""A study's file is its owner's alone, and is a study: what may not be one is refused and left alone."""

import os
import sqlite3
import stat
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from autofit.core.errors import StudyError
from autofit.study import permissions, read_studies
from autofit.study.permissions import is_storage
from tests.study.samples import in_optuna, measured, reopen, run


def refused(location: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        reopen(location)
    text = str(caught.value)
    assert "found" in text
    assert "expected" in text
    return text


def database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table photos (name text)")
    return path


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "s.journal").touch()
    assert reopen(tmp_path / "s.journal").earlier() == ()


def test_other_things_than_a_study_are_refused_and_left_alone(journal: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "text.journal"
    thesis.write_text("my thesis, the only copy")  # without a line feed: it is not cut off
    os.symlink(journal, tmp_path / "link.journal")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling.journal")
    os.mkfifo(tmp_path / "pipe.journal")
    other = database(tmp_path / "other.db")
    before = other.read_bytes()
    assert "found a directory" in refused(tmp_path)
    assert "found a file of another kind" in refused(thesis)
    assert "found a symbolic link" in refused(tmp_path / "link.journal")
    assert "found a symbolic link" in refused(tmp_path / "dangling.journal")
    assert "found a special file" in refused(tmp_path / "pipe.journal")
    assert f"found an SQLite database, whose URL is sqlite:///{other}" in refused(other)
    assert "NotADirectoryError" in refused(thesis / "s.journal")
    assert thesis.read_text() == "my thesis, the only copy"
    assert other.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


OPERATION = '{"op_code":2,"worker_id":"a","study_id":0,"user_attr":{"a":%s}}\n'


def test_a_file_that_is_too_large_is_refused_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "MAX_BYTES", 2**20)
    path = tmp_path / "s.journal"
    path.write_text(OPERATION % f'"{"x" * 900}"' * 1200)
    before = path.read_bytes()
    assert "found a file of 1.1" in refused(path)
    with pytest.raises(StudyError, match=r"found a file of 1\.1"):
        read_studies(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, '{"b":' * 900 + "1" + "}" * 900])
def test_a_line_that_is_nested_too_deeply_is_one_error(
    value: str, journal: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(1000)  # Python's own; a library that other tests import may have raised it
    with journal.open("a") as file:
        file.write(OPERATION % value)
    before = journal.read_bytes()
    refused(journal)
    with pytest.raises(StudyError):
        read_studies(journal)
    assert journal.read_bytes() == before


def test_brackets_in_a_text_are_not_nesting(journal: Path) -> None:
    study = reopen(journal)
    study.note("texts", {"a": ["[{" * 1000, '\\"[' * 1000, "\\"], "b": [[]] * 1000})
    assert reopen(journal).kept_notes()["texts"] == study.kept_notes()["texts"]


@pytest.mark.parametrize(
    "line",
    [
        *("5", "[]", "null", '"a"', "{}", "\udcff", "9" * 5000),
        *(f'{{"op_code":{code},"worker_id":"a"}}' for code in (99, -1, "1e400", "[]", "null", 4)),
        '{"op_code":4,"worker_id":"a","study_id":[]}',
        '{"op_code":4,"worker_id":"a","study_id":0,"datetime_start":5}',
        '{"op_code":2,"worker_id":"a","study_id":0,"user_attr":{"autofit.dropped":5}}',
        '{"op_code":2,"worker_id":"a","study_id":0,"user_attr":{"autofit.dropped":[{"trials":[[]]}]}}',
    ],
)
def test_a_line_that_is_no_operation_of_optunas_is_one_error(line: str, journal: Path) -> None:
    with journal.open("ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    before = journal.read_bytes()
    refused(journal)
    with pytest.raises(StudyError):
        read_studies(journal)
    assert journal.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_refused(journal: Path) -> None:
    journal.chmod(0o400)
    assert "PermissionError" in refused(journal)


def test_the_file_and_its_directories_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "s.journal"
    run(path, measured())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for directory in (path.parent, path.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["s.journal"]


def test_f60_the_default_directory_of_a_project_is_not_followed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".autofit").symlink_to(tmp_path / "elsewhere")
    assert "found a symbolic link to" in refused(tmp_path / ".autofit" / "study.journal")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_f60_a_directory_or_file_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ".autofit"
    folder.mkdir()
    folder.chmod(0o777)
    assert "found a directory that everyone can write to" in refused(folder / "study.journal")
    folder.chmod(0o700)
    run(folder / "study.journal", measured())
    (folder / "study.journal").chmod(0o666)
    assert "found a file that everyone can write to" in refused(folder / "study.journal")


def test_a_study_in_the_common_temporary_directory_is_allowed(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    run(shared / "s.journal", measured())
    assert len(in_optuna(shared / "s.journal")) == 1


def test_a_storage_is_known_by_its_first_bytes(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("schema: autofit.plan/1\n")
    found = [is_storage(path) for path in (journal, database(tmp_path / "other.db"), tmp_path / "plan.yaml")]
    assert found == [True, True, False]
