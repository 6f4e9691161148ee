"""Child processes that must not outlive the suite, however it ends. Imports only the standard library."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Asks the Linux kernel to kill this process when its parent dies; as a `preexec_fn` it survives the exec."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(command: Sequence[str], sink: Any, limit_s: float) -> int | None:
    """Returns the exit code, or None if the time limit was reached. No process of its group is left."""
    with subprocess.Popen(
        command,
        stdout=sink,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, found at import: takes no lock
    ) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
