"""Where studies can be kept, what is refused and left alone, who can access a file, and that no secret is shown."""

import os
import sqlite3
import stat
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from autofit.core.errors import StorageError, StudyError, UsageError
from autofit.core.trial import Purpose
from autofit.study import location as location_module
from autofit.study import read_studies
from autofit.study.location import StudyPlace, dereferenced, is_storage
from tests.study.samples import PLAN, in_optuna, measured, reopen, run


def refused(location: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        reopen(location)
    text = str(caught.value)
    assert "found" in text
    assert "expected" in text
    return text


@pytest.mark.parametrize("location", [None, ":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory(location: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = reopen(location)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert study.location == "memory"
    assert list(tmp_path.iterdir()) == []


def test_a_relative_url_of_sqlite_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StudyPlace.of("sqlite:///s.db?timeout=3").url == f"sqlite:///{tmp_path}/s.db?timeout=3"
    assert StudyPlace.of("sqlite:////s.db").url == "sqlite:////s.db"


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OSError("disk"), True), (sqlite3.OperationalError("locked"), True), (sqlite3.DatabaseError("image"), True),
        (ImportError("driver"), False), (ValueError("line"), False), (KeyError("op_code"), False),
    ],
)  # fmt: skip
def test_a_storage_that_does_not_answer_is_told_from_one_that_cannot_be_used(error: Exception, away: bool) -> None:
    with pytest.raises(StudyError) as caught, StudyPlace.of(None).guarded("opened"):
        raise error
    assert isinstance(caught.value, StorageError) is away


def test_a_relative_path_stays_where_it_was(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(journal.parent)
    study = reopen("s.journal")
    monkeypatch.chdir("/")
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert len(reopen(journal).earlier()) == 1


def test_names_that_mean_something_in_a_url(tmp_path: Path) -> None:
    path = tmp_path / "a b{c}%20d?mode=ro#e@f:g.journal"
    study = reopen(path)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert len(reopen(path).earlier()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        ("postgresql+psycopg://host.example/net", "postgresql+psycopg://host.example/net", []),
        ("postgresql+psycopg://bob:tiger@h:5432/n", "postgresql+psycopg://***@h:5432/n", ["tiger"]),
        ("mysql://bob@h/n?sslpassword=lion&t=tiger", "mysql://***@h/n?***", []),
        ("mysql://bob:li%40on@h/n", "mysql://***@h/n", ["li%40on", "li@on"]),
        ("mysql://h/n?tiger", "mysql://h/n?***", []),
    ],
)
@pytest.mark.fault("F59")
def test_secrets_of_a_url_are_not_shown(url: str, shown: str, secrets: list[str]) -> None:
    place = StudyPlace.of(url)
    assert place.shown == shown
    with pytest.raises(StudyError) as caught, place.guarded("opened"):
        raise RuntimeError(f"cannot reach {url} with {' and '.join(secrets)}, sorry")
    assert shown in str(caught.value)
    assert "sorry" in str(caught.value)
    assert not [secret for secret in secrets if secret in str(caught.value)]


@pytest.mark.parametrize(
    "url", ["nosuch://bob:lion@h/n?token=tiger", "https://bob:lion@h/n", "mysql+nosuch://bob:lion@h/{n}", "://"]
)
def test_unknown_databases_are_refused_without_secrets(url: str) -> None:
    text = refused(url)
    assert "postgresql+psycopg://host/database" in text
    assert not [secret for secret in ("bob", "lion", "tiger") if secret in text]


@pytest.mark.parametrize(("location", "found"), [("", "is empty"), ("~no-such-user/study.journal", "cannot be found")])
def test_a_place_that_cannot_be_is_refused(location: str, found: str) -> None:
    """An unset variable was a study in memory without a word, an unknown user an internal error."""
    with pytest.raises(UsageError, match=found):
        StudyPlace.of(location)


URL = "postgresql+psycopg://bob:tiger@host/net"


@pytest.mark.parametrize("location", [None, "study.journal", URL, "environment.journal", ":memory:"])
def test_other_locations_are_as_they_are(location: str | None) -> None:
    assert dereferenced(location) == location


def test_a_variable_and_a_file_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFIT_STUDY", URL)
    (tmp_path / "secret").write_text(f"{URL}\n")
    assert dereferenced("env:AUTOFIT_STUDY") == URL
    assert dereferenced(f"file:{tmp_path / 'secret'}") == URL


def test_what_is_not_there_is_named_and_what_is_secret_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMPTY", " ")
    monkeypatch.delenv("UNSET", raising=False)
    (tmp_path / "empty").write_text("")
    (tmp_path / "bytes").write_bytes(b"\xff" + URL.encode())
    for location, found in (
        ("env:EMPTY", "the environment variable EMPTY, which is not set or is empty"),
        ("env:UNSET", "the environment variable UNSET, which is not set or is empty"),
        (f"file:{tmp_path / 'empty'}", "which is empty"),
        (f"file:{tmp_path}", "Is a directory"),
        (f"file:{tmp_path / 'none'}", "No such file or directory"),
        (f"file:{tmp_path / 'bytes'}", "which is not UTF-8 text"),
        ("file:~no-such-user/location", "which cannot be read"),
    ):
        with pytest.raises(UsageError) as caught:
            dereferenced(location)
        assert found in str(caught.value)
        assert "expected" in str(caught.value)
        assert "tiger" not in str(caught.value)


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
    monkeypatch.setattr(location_module, "MAX_BYTES", 2**20)
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
@pytest.mark.fault("F54")
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


@pytest.mark.fault("F60")
def test_f60_the_default_directory_of_a_project_is_not_followed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".autofit").symlink_to(tmp_path / "elsewhere")
    assert "found a symbolic link to" in refused(tmp_path / ".autofit" / "study.journal")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.fault("F60")
def test_f60_a_directory_or_file_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ".autofit"
    folder.mkdir()
    folder.chmod(0o777)
    assert "found a directory that everyone can write to" in refused(folder / "study.journal")
    folder.chmod(0o700)
    run(folder / "study.journal", measured())
    (folder / "study.journal").chmod(0o666)
    assert "found a file that everyone can write to" in refused(folder / "study.journal")


def test_a_file_that_everybody_can_write_to_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path, most_bytes: int) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(location_module, "head_of", unreadable)
    (tmp_path / "study.journal").touch()
    (tmp_path / "study.journal").chmod(0o222)
    assert "found a file that everyone can write to" in refused(tmp_path / "study.journal")


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
