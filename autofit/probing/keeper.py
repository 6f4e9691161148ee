"""Keeper: a small process between the tuner and its worker, so that nothing of the worker's outlives either.

`python -P keeper.py --life FD --read FD --write FD`. It forks; its child becomes the worker (worker.py), and it waits:

* When the worker ends, whatever the worker started is killed, and the keeper ends as the worker did.
* When the tuner ends (also by `kill -9`) or lets go of the child, the other end of the descriptor `--life` closes. Then
  the worker is killed with all that it started.

On Linux the keeper is the reaper of all its descendants, so that helpers that made a session of their own (`setsid`)
are found too. Elsewhere the process group is killed, and such helpers are not found.

Loads the standard library only, and as little of that as it can: it starts in no time and takes no memory.
"""

import ctypes
import importlib
import importlib.util
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from time import monotonic, sleep

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SWEEP_S = 30.0
"""A process in uninterruptible sleep is left to the kernel after this."""
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None  # loaded here: after a fork it could wait for a lock


def die_with(parent: int) -> None:
    """Has the kernel kill this process when `parent`, which forked it, dies (Linux only; nothing elsewhere)."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def keep(life: int, *others: int) -> None:
    """Forks, and returns in the new process, the worker; this one waits, cleans up, and ends as the worker did.

    Args:
        life: a descriptor that nothing is written to; it is at its end when the tuner is gone.
        others: descriptors that only the worker uses.
    """
    me = os.getpid()
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    worker = os.fork()
    if worker == 0:
        os.close(life)
        die_with(me)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker; the keeper ends after it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, *others):  # so that their other ends see when the worker has closed its own
        os.dup2(nowhere, descriptor)
    status = _wait(worker, life)
    _sweep()
    _end_as(status)


def _wait(worker: int, life: int) -> int:
    """Returns the wait status of the worker when it has ended; that of a kill when the tuner has."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for pid, status in _reaped():  # orphans of the worker's too
            if pid == worker:
                return status
        ready, _, _ = select.select([life, woken], [], [])
        if life in ready:
            return int(signal.SIGKILL)
        os.read(woken, 4096)


def _reaped() -> list[tuple[int, int]]:
    """Returns process and wait status of each child that has ended."""
    found = []
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _sweep() -> None:
    """Kills and reaps all descendants: those of a child that dies become this process's own."""
    if not LINUX:
        return
    until = monotonic() + _SWEEP_S
    while (children := _children()) and monotonic() < until:
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reaped()
        sleep(0.002)


def _children() -> list[int]:
    """Returns the children of this process, the dead that are not reaped among them."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def _end_as(status: int) -> None:
    """Ends this process as a wait status says, without a core of its own."""
    if not LINUX:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(0, signal.SIGKILL) if status == signal.SIGKILL else None
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL cannot be handled, and need not be
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    """Keeps a worker, and in the other process is one."""
    given = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True))
    keep(given["--life"], given["--read"], given["--write"])
    if importlib.util.find_spec("autofit") is None:  # not installed: it runs from a folder of its sources
        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))
    worker = importlib.import_module("autofit.probing.remote.worker")  # here, so that the keeper itself does without
    worker.serve(given["--read"], given["--write"])


if __name__ == "__main__":
    main()
