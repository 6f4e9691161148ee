"""A command in a pseudo-terminal, and the lines that it leaves on the screen."""

import os
import pty
import re
import subprocess
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROWS = 50
_TOKEN = re.compile(r"(?P<colour>\x1b\[[\d;]*m)|(?P<control>\x1b\[2?K|\x1b\[A|[\r\n])|(?P<text>[^\x1b\r\n]+)")


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str], columns: int) -> tuple[int, str]:
    """Runs a command in a new pseudo-terminal; returns its exit code and everything that it wrote."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, columns))
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # how Linux says that the other end is closed
            while data := os.read(ours, 2**16):
                written += data
        os.close(ours)
    return process.returncode, written.decode()


def lines_of(written: str) -> list[str]:
    """Returns the lines that are on a screen without colours and with endless history, after a text was written to it.

    It knows what autofit writes: carriage return, new line, colours, cursor up, and clearing a row or its rest.

    Raises:
        ValueError: the text has another control sequence.
    """
    rows, row, column, at = [""], 0, 0, 0
    while at < len(written):
        found = _TOKEN.match(written, at)
        if found is None:
            raise ValueError(f"found {written[at : at + 12]!r}; expected text or a sequence that this screen knows")
        at = found.end()
        if text := found["text"]:
            rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
            column += len(text)
        elif control := found["control"]:
            row, column = _moved(control, rows, row, column)
    return [line.rstrip() for line in rows]


def _moved(control: str, rows: list[str], row: int, column: int) -> tuple[int, int]:
    """Changes the rows as a control character or sequence says; returns the row and column that follow it."""
    if control == "\n":
        rows += [""] * (row + 1 == len(rows))
        return row + 1, column
    if control == "\r":
        return row, 0
    if control == "\x1b[A":
        return max(row - 1, 0), column
    rows[row] = "" if control == "\x1b[2K" else rows[row][:column]
    return row, column
