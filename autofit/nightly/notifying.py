"""Notifying: runs the user's command with a summary on its standard input. No shell, and a deadline."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from autofit.core.printable import one_line
from autofit.core.redaction import redacted
from autofit.core.units import format_duration

PATIENCE_S = 60.0
"""Maximum duration of a command. A night does not wait longer for it."""
_SHOWN_LETTERS = 200


def notify(command: Sequence[str], text: str, folder: Path, patience_s: float = PATIENCE_S) -> str:
    """Runs a command with `text` on its standard input. Returns what went wrong, or "".

    Args:
        command: program and arguments. A relative program is relative to `folder`.
        text: the summary.
        folder: working directory of the command.
        patience_s: seconds after which the command and every process in its group are killed.
    """
    try:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{_shown(command)} could not be started: {getattr(error, 'strerror', None) or error}"
    try:
        _, said = process.communicate(text.encode(), timeout=patience_s)
    except subprocess.TimeoutExpired:
        return f"{_shown(command)} did not end within {format_duration(patience_s)} and was killed"
    finally:
        _end(process)
    if process.returncode == 0:
        return ""
    last = (said.decode(errors="replace").strip().splitlines() or [""])[-1]
    why = f": {one_line(redacted(last))[:_SHOWN_LETTERS]}" if last else ""
    return f"{_shown(command)} ended with exit code {process.returncode}{why}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills what is left of the command's process group, reaps the command, and closes its pipes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _shown(command: Sequence[str]) -> str:
    """Returns the name of the program; its arguments may hold secrets."""
    return f"the command {one_line(command[0]) if command else ''}"
