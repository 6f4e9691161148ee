"""Locks: allow one tuner at a time on a device and in a study. They are advisory and name their holder.

A lock is `flock` on a file in a private directory of this user, so that the kernel releases it however its process
ends. Processes with different directories in `AUTOFIT_RUNTIME_DIR` do not see each other's locks.
"""

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from autofit.core.errors import Busy, UsageError
from autofit.core.units import format_duration

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

DIRECTORY_VARIABLE = "AUTOFIT_RUNTIME_DIR"
"""Environment variable for another lock directory, for running tuners side by side, as tests do."""
PATIENCE_S = 600.0
"""Maximum time to wait for another tuner without a time budget."""
TIME_RATIO = 0.5
"""Maximum share of a time budget spent waiting, so that enough is left for the search."""
POLL_S = 0.1
"""Interval between two attempts. The kernel could wait itself, but without a time limit."""

Say = Callable[[str], None]
_held = threading.local()
_reported_unlockable: set[str] = set()


def patience_s(time_s: float | None) -> float:
    """Returns the maximum time to wait for another tuner under a time budget."""
    return PATIENCE_S if time_s is None else TIME_RATIO * time_s


@contextmanager
def held(key: str, what: str, wait_s: float, say: Say = lambda text: None) -> Iterator[None]:
    """Holds the lock of `key` while the context is open.

    The lock can be entered again in the same thread, and in child processes of a process that holds it.

    Args:
        key: key of the lock. Users of the same key exclude each other.
        what: description of what is locked.
        wait_s: maximum time to wait for another process or thread, in seconds.
        say: receives one message if this waits, and one if locks are not available.

    Raises:
        Busy: another process or thread still holds the lock after this time.
        UsageError: the lock directory cannot be trusted.
    """
    keys: set[str] = _held.__dict__.setdefault("keys", set())
    descriptor = None if key in keys else _claim(key, what, wait_s, say)
    if descriptor is None:
        yield
        return
    keys.add(key)
    owner = os.getpid()
    try:
        yield
    finally:
        keys.discard(key)
        if os.getpid() == owner:  # not in a child that was forked meanwhile: the lock belongs to the parent
            with suppress(OSError):
                os.ftruncate(descriptor, 0)  # a process that this one starts later must not find its signature
                if fcntl is not None:  # released even if a process that was forked meanwhile has the file open
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def locked(descriptor: int, wait_s: float, waiting: Callable[[], None] = lambda: None) -> bool:
    """Takes `flock` on an open file. Returns whether it was acquired in time.

    Args:
        descriptor: file descriptor. The lock is released when all copies of it are closed.
        wait_s: maximum time to wait in seconds.
        waiting: called once if the first attempt fails.

    Raises:
        OSError: the file system or the platform does not support such locks.
    """
    if fcntl is None:
        raise OSError("no flock on this platform")
    until, notified = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not notified:
                notified = True
                waiting()
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)
        else:
            return True


def holder_of(path: Path) -> str:
    """Describes the holder of a lock on a file or directory, as far as the kernel reports it (Linux)."""
    found = path.stat()
    mark = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return "another process"
    for fields in lines:
        # 1: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF; "->" before the type of a waiting lock
        if len(fields) > 5 and fields[5] == mark and int(fields[4]) not in (0, -1, os.getpid()):
            words = list[str]()
            with suppress(OSError):
                words = Path(f"/proc/{fields[4]}/cmdline").read_bytes().decode(errors="replace").split("\0")
            command = " ".join(Path(word).name for word in words[:2]).strip()
            return f"process {fields[4]}{f' ({command})' if command else ''}"
    return "another process"


def directory() -> Path:
    """Returns this user's lock directory. Creates it if needed.

    Raises:
        UsageError: another user could write to it.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    # TMPDIR is not used on Linux, since it may differ between sessions.
    common = Path("/tmp") if sys.platform == "linux" else Path(tempfile.gettempdir())
    path = Path(os.environ.get(DIRECTORY_VARIABLE) or common / f"autofit-{user}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or (os.name == "posix" and (found.st_uid != user or found.st_mode & 0o022)):
        raise UsageError(
            f"found that the lock directory {path} is a link, belongs to another user, or is writable by others; "
            f"expected a directory that you own with mode 700. Remove it, or set {DIRECTORY_VARIABLE} to another."
        )
    return path


def _claim(key: str, what: str, wait_s: float, say: Say) -> int | None:
    """Returns the descriptor that holds the lock; None if an ancestor holds it or locks are not available."""
    name = f"{re.sub('[^A-Za-z0-9]+', '-', key)[:40]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.lock"
    descriptor, holds = None, False
    try:
        descriptor = os.open(directory() / name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        holds = _taken(descriptor, what, wait_s, say)
    except OSError as error:
        if key not in _reported_unlockable:
            _reported_unlockable.add(key)
            say(f"{what} cannot be locked here ({error}): do not run two tuners on it at once")
    finally:
        if descriptor is not None and not holds:
            os.close(descriptor)
    return descriptor if holds else None


def _taken(descriptor: int, what: str, wait_s: float, say: Say) -> bool:
    """Takes and signs a lock. Returns False if an ancestor of this process holds it."""
    began = time.monotonic()

    def holder() -> str:
        signed = _signed(descriptor)
        if not signed:
            return "another process"
        return f"process {signed.get('pid')} ({signed.get('command')}) since {signed.get('since')}"

    def waiting() -> None:
        say(f"waiting up to {format_duration(wait_s)} for {what}, in use by {holder()}")

    if _by_ancestor(descriptor):
        return False
    if not locked(descriptor, wait_s, waiting):
        raise Busy(
            f"{what} is in use: found {holder()}, after {format_duration(time.monotonic() - began)} of "
            "waiting; expected one tuner at a time, since two disturb each other's timing and memory. Wait until "
            "it ends, end it, or allow more time."
        )
    # The command line has no values of options, which may be secrets.
    words = [Path(sys.argv[0] or "python").name, *(word.partition("=")[0] for word in sys.argv[1:3])]
    command = " ".join(word for word in words if "://" not in word)
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "command": command, "since": since}).encode(), 0)
    return True


def _signed(descriptor: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return found if isinstance(found, dict) else {}
    except ValueError:  # its holder is just writing it
        return {}


def _by_ancestor(descriptor: int) -> bool:
    """Returns whether an ancestor of this process holds the lock."""
    holder, pid = _signed(descriptor).get("pid"), os.getppid()
    while pid > 1 and pid != holder:
        fields = stat_of(pid)
        pid = int(fields[1]) if fields else 0
    if pid <= 1 or locked(descriptor, 0.0):
        return False  # if it could be taken, the holder has released it
    return _signed(descriptor).get("pid") == holder  # false if another process has taken it meanwhile


def stat_of(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on, see proc(5); [] if there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
