"""A location that an environment variable or a file contains."""

from pathlib import Path

import pytest

from autofit.core.errors import UsageError
from autofit.study.reference import dereferenced

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
