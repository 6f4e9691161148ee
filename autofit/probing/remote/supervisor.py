"""Supervisor: a small process between the tuner and its worker. No process of the worker outlives either of them.

Command line: `python -P supervisor.py --life FD --read FD --write FD`, or with `--nursery FD --life FD` for a process
that forks such supervisors (nursery.py). The supervisor forks. Its child becomes the worker (worker.py), and the
supervisor waits:

* When the worker ends, the supervisor kills every process that the worker started, and ends with the worker's exit
  status.
* When the tuner ends (also by `kill -9`) or releases the child, the other end of the descriptor `--life` closes. The
  supervisor then kills the worker and every process that the worker started.

On Linux the supervisor is the reaper of all its descendants, so it also finds helpers in a session of their own
(`setsid`). Elsewhere it kills the process group and does not find such helpers.

Supervisor and worker have a process group of their own, which signals from the terminal do not reach, and stay in the
session of the tuner: Linux divides the cores between sessions (`sched_autogroup`), so that beside another busy process
the threads of a worker with a session of its own may stay on one core and wait for each other.

The supervisor itself loads little more than the standard library, so that it starts fast and takes little memory.
"""

import importlib
import importlib.util
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

if importlib.util.find_spec("autofit") is None:  # not installed: this file runs from a source directory
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))
from autofit.linux_process import IS_LINUX, adopt_orphans, die_with
from autofit.probing.frozen_heap import collect_rarely  # needs the path above

_KILL_S = 30.0
"""Time after which processes in uninterruptible sleep are left to the kernel."""


def keep(life: int, *others: int, ended: Callable[[int], None] = lambda status: None) -> None:
    """Forks, and returns in the new process, the worker. This process waits, cleans up and exits as the worker did.

    Nothing is written to the descriptor `life`, which reaches its end when the tuner is gone. Only the worker uses the
    `others`. `ended` is called with the worker's wait status, after the processes that it started have ended.
    """
    me = os.getpid()
    adopt_orphans()
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)  # code that asks the terminal gets an error, and is not stopped
    worker = os.fork()
    if worker == 0:
        os.close(life)
        die_with(me)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are for the worker; the supervisor ends after it
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, *others):  # otherwise the other ends would not see that the worker closed its own
        os.dup2(null, descriptor)
    status = _wait(worker, life)
    _kill_descendants()
    ended(status)
    _exit_with(status)


def _wait(worker: int, life: int) -> int:
    """Returns the wait status of the worker once it has ended, or that of a kill once the tuner has ended."""
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for pid, status in _reaped():  # including orphans that the worker left
            if pid == worker:
                return status
        ready, _, _ = select.select([life, wakeup_read], [], [])
        if life in ready:
            return int(signal.SIGKILL)
        os.read(wakeup_read, 4096)


def _reaped() -> list[tuple[int, int]]:
    """Reaps the children that have ended and returns the process id and wait status of each."""
    found = []
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found


def _kill_descendants() -> None:
    """Kills and reaps all descendants. When a child dies, its children become children of this process."""
    if not IS_LINUX:
        return
    until = monotonic() + _KILL_S
    while (children := _children()) and monotonic() < until:
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reaped()
        sleep(0.002)


def _children() -> list[int]:
    """Returns the children of this process, including zombies."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == me:
                    found.append(int(name))
    return found


def _exit_with(status: int) -> None:
    """Ends this process with the given wait status, without a core dump of its own."""
    if not IS_LINUX and status == signal.SIGKILL:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(0, signal.SIGKILL)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    """Runs the supervisor, and the worker in the process that it forks; or the nursery."""
    collect_rarely()
    given = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True))
    if "--nursery" in given:
        importlib.import_module("autofit.probing.remote.fork_server").main(given["--nursery"], given["--life"])
        return
    keep(given["--life"], given["--read"], given["--write"])
    worker = importlib.import_module("autofit.probing.remote.worker")  # here, so that the supervisor does not load it
    worker.serve(given["--read"], given["--write"])


if __name__ == "__main__":
    main()
