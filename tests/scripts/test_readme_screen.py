"""The screen from which a transcript is checked: what stays on it after a program has written."""

import os
import sys
from pathlib import Path

import pytest

from scripts.readme.screen import lines_of, run


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("one\r\ntwo\r\n", ["one", "two", ""]),
        ("\x1b[32mgreen\x1b[0m plain", ["green plain"]),
        ("live line\rnew\x1b[K", ["new"]),
        ("live line\rnew", ["newe line"]),
        ("first\r\nlive\x1b[2K\x1b[A\x1b[2K\rsecond", ["second", ""]),
        ("abc\x1b[A\r\nd", ["abc", "d"]),
        ("a\r\nb\x1b[Ac", ["ac", "b"]),
    ],
)
def test_lines_are_those_of_a_terminal(written: str, lines: list[str]) -> None:
    assert lines_of(written) == lines


def test_what_the_screen_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="this screen knows"):
        lines_of("text\x1b[2J")


def test_a_command_sees_a_terminal_of_the_width_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    code = "import os, sys; print(os.get_terminal_size().columns, sys.stderr.isatty(), os.getcwd()); sys.exit(3)"
    done, written = run([sys.executable, "-c", code], tmp_path, os.environ, 87)
    assert (done, lines_of(written)) == (3, [f"87 True {tmp_path.resolve()}", ""])
