"""The files of a night: links are kept, other files are not replaced, and one that fails stops no other."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from autofit.cli.nightly_files import NightlyFiles
from autofit.core.errors import UsageError
from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from autofit.nightly.result import NightResult

RECORD = NightRecord(
    id="a", job="gpt", night="2026-11-25T01:00:00+00:00", at="2026-11-25T01:00:00+00:00",
    verdict=Verdict(kind=VerdictKind.ERROR, reason="your code failed"),
)  # fmt: skip
NIGHT = NightResult(night=RECORD.night, records=(RECORD,))
HISTORY = {"gpt": (RECORD,)}


def files(**given: Any) -> NightlyFiles:
    kinds = ("junit", "markdown", "benchmark_json", "benchmark_memory_json", "html")
    return NightlyFiles.of(argparse.Namespace(**(dict.fromkeys(kinds) | {"force": False} | given)))


def test_each_kind_is_written_and_replaced_by_a_later_night(tmp_path: Path) -> None:
    paths = {
        "junit": "n.xml", "markdown": "n.md", "benchmark_json": "b.json", "benchmark_memory_json": "m.json",
        "html": "n.html",
    }  # fmt: skip
    asked = {kind: str(tmp_path / name) for kind, name in paths.items()}
    for _ in range(2):
        files(**asked).write(NIGHT, HISTORY)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(paths.values())
    assert json.loads((tmp_path / "b.json").read_text()) == []
    assert "your code failed" in (tmp_path / "n.md").read_text()


def test_a_path_is_relative_to_where_the_command_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = files(markdown="n.md")
    monkeypatch.chdir("/")
    asked.write(NIGHT, HISTORY)
    assert (tmp_path / "n.md").exists()


def test_a_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "n.md").symlink_to("latest.md")
    files(markdown=str(tmp_path / "n.md")).write(NIGHT, HISTORY)
    assert (tmp_path / "n.md").is_symlink()
    assert (tmp_path / "latest.md").is_file()


@pytest.mark.parametrize("kind", ["junit", "markdown", "benchmark_json", "html"])
def test_a_file_of_another_program_is_replaced_only_by_force(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"name": "of another program"}')
    with pytest.raises(UsageError, match="an earlier night did not write"):
        files(**{kind: str(path)})
    files(force=True, **{kind: str(path)}).write(NIGHT, HISTORY)
    assert "another program" not in path.read_text()


def test_what_cannot_be_written_is_refused_before_the_night(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "missing" / "n.md", tmp_path / "loop" / "n.md"):
        with pytest.raises(UsageError):
            files(markdown=str(path), force=True)


def test_a_file_that_fails_later_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    asked = files(junit=str(tmp_path / "gone" / "n.xml"), markdown=str(tmp_path / "n.md"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match=r"n\.xml cannot be written.*The records of the night are in the history"):
        asked.write(NIGHT, HISTORY)
    assert (tmp_path / "n.md").exists()
