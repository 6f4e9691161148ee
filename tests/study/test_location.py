"""Where studies can be kept, what is refused, and that no secret is shown."""

import sqlite3
from pathlib import Path

import pytest

from autofit.core.errors import StorageError, StudyError, UsageError
from autofit.core.trial import Purpose
from autofit.study.location import Place, dereferenced
from tests.study.samples import PLAN, measured, reopen


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
    assert Place.of("sqlite:///s.db?timeout=3").url == f"sqlite:///{tmp_path}/s.db?timeout=3"
    assert Place.of("sqlite:////s.db").url == "sqlite:////s.db"


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OSError("disk"), True), (sqlite3.OperationalError("locked"), True), (sqlite3.DatabaseError("image"), True),
        (ImportError("driver"), False), (ValueError("line"), False), (KeyError("op_code"), False),
    ],
)  # fmt: skip
def test_a_storage_that_does_not_answer_is_told_from_one_that_cannot_be_used(error: Exception, away: bool) -> None:
    with pytest.raises(StudyError) as caught, Place.of(None).guarded("opened"):
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
def test_secrets_of_a_url_are_not_shown(url: str, shown: str, secrets: list[str]) -> None:
    place = Place.of(url)
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
        Place.of(location)


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
    ):
        with pytest.raises(UsageError) as caught:
            dereferenced(location)
        assert found in str(caught.value)
        assert "expected" in str(caught.value)
        assert "tiger" not in str(caught.value)
