"""The command that is run after a regression: it gets the summary, has a deadline, and never stops a night."""

import os
import sys
import time
from pathlib import Path

import pytest

from autofit.nightly.notifying import notify


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_gets_the_text_in_the_folder_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    code = "import sys, pathlib; pathlib.Path('said').write_text(sys.stdin.read() + '|'.join(sys.argv[1:]))"
    assert notify([*python(code), "$HOME", "a b;"], "# gpt: regression\n", tmp_path) == ""
    assert (tmp_path / "said").read_text() == "# gpt: regression\n$HOME|a b;"


def test_a_relative_program_is_relative_to_the_folder(tmp_path: Path) -> None:
    script = tmp_path / "notify"
    script.write_text("#!/bin/sh\ncat > said\n")
    script.chmod(0o700)
    assert notify(["./notify"], "text", tmp_path) == ""
    assert (tmp_path / "said").read_text() == "text"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["./missing"], "the command ./missing could not be started: No such file or directory"),
        (python("import sys; sys.exit(3)"), f"the command {sys.executable} ended with exit code 3"),
        (python("raise ValueError('password=hunter2 is wrong')"), "ValueError: password=*** is wrong"),
        (["a\0b"], "could not be started: embedded null byte"),
    ],
)
def test_a_command_that_fails_is_a_note_without_secrets(command: list[str], expected: str, tmp_path: Path) -> None:
    assert expected in notify(command, "text", tmp_path)


def test_a_command_that_does_not_read_its_input_is_no_failure(tmp_path: Path) -> None:
    assert notify(["true"], "x" * 2**20, tmp_path) == ""


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); open('pid', 'w').write(str(p.pid)); p.wait()"
    began = time.monotonic()
    assert "did not end within 1 s and was killed" in notify(python(code), "text", tmp_path, patience_s=1.0)
    assert time.monotonic() - began < 20
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return bool(os.path.exists(f"/proc/{pid}"))
