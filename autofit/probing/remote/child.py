"""Child: one worker process with its own pipes, two clocks, and a kill that leaves no process behind.

The output of the user's code goes to a private log file, and nowhere else, since it may contain keys and passwords. No
part of it reaches a plan, a study or a result, except for the last line of an exception, from which anything that looks
like a secret is removed.
"""

import json
import math
import os
import re
import selectors
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from autofit.core.outcome import Outcome, Status
from autofit.core.printable import redacted
from autofit.core.units import format_duration
from autofit.failures.classify import classify
from autofit.failures.evidence import Evidence, plain
from autofit.files import is_mine
from autofit.probing.remote.nursery import ForkedProcess, Nursery, fresh

_LINE_BYTES = 16 * 2**20
_POLL_S = 0.1
"""Interval of checks that the process is alive: its own helpers may hold its pipe open after its death."""
_GROUP_S = 1.0  # time for killed processes to disappear
MOST_BYTES = 2**20
"""Maximum size of a log. When it is reached, only the last `KEPT_BYTES` are kept."""
KEPT_BYTES = 2**16
_REASON_LIMIT = 240
_HEAD, _CUT = b"--- printed by your code from ", b"[what was printed before is not kept]\n"
"""The two possible beginnings of a log. A file with any other beginning is not a log of autofit's."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?::\s.*)?$")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits of a child, in seconds (reference/reliability.md, constants).

    Attributes:
        first_s: silence allowed until the first step of the process is done, for imports and compilation.
        progress_s: silence allowed afterwards.
        total_s: maximum duration of one request.
        grace_s: time between SIGTERM and SIGKILL.
        exit_s: maximum wait for a killed process to disappear.
    """

    first_s: float = 600.0
    progress_s: float = 120.0
    total_s: float = 1800.0
    grace_s: float = 5.0
    exit_s: float = 60.0


class ChildEnded(Exception):
    """The child died or was killed before it replied. `outcome` is the resulting outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class OutputLog:
    """A log file with mode 0600 that is created at the first output. Thread-safe.

    Without a path it is a temporary file, which `close` removes unless `location` was called.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._temporary = path, path is None
        self._file: int | None = None
        self._failure, self._shown = "", False
        self._lock = threading.Lock()

    def write(self, chunk: bytes, tail: bytes) -> None:
        """Appends a chunk. If the log is full, everything but `tail`, the end of the output, is dropped.

        Errors in writing the log are ignored.
        """
        with self._lock, suppress(OSError):
            if self._file is None and not self._failure:
                self._open()
            if self._file is None:
                return
            if os.fstat(self._file).st_size + len(chunk) > MOST_BYTES:
                os.ftruncate(self._file, 0)
                chunk = _CUT + tail
            while chunk:
                chunk = chunk[os.write(self._file, chunk) :]

    def location(self) -> str:
        """Returns a text that says where the output is. From then on the file is kept."""
        if self._file is None:
            return f"its output could not be kept ({self._failure})" if self._failure else ""
        self._shown = True
        return f"its output is in {self._path}"

    def close(self) -> None:
        """Closes the file. Removes a temporary file whose location was not shown."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file, self._failure = None, "it was closed"
                if self._temporary and not self._shown and self._path is not None:
                    self._path.unlink(missing_ok=True)

    def _open(self) -> None:
        try:
            self._file = self._descriptor()
            os.fchmod(self._file, 0o600)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            os.write(self._file, _HEAD + f"{when} on\n".encode())
        except OSError as error:
            self._failure = error.strerror or str(error)

    def _descriptor(self) -> int:
        if self._path is None:
            descriptor, name = tempfile.mkstemp(prefix="autofit-", suffix=".log")
            self._path = Path(name)
            return descriptor
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.parent.is_symlink() or not is_mine(self._path.parent.lstat()):
            raise PermissionError(0, "the study's directory is a link or belongs to another user")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        found = os.fstat(descriptor)
        if not (stat.S_ISREG(found.st_mode) and is_mine(found) and found.st_nlink == 1):
            os.close(descriptor)
            raise PermissionError(0, "the log is not a regular file of this user")
        begins = os.pread(descriptor, max(len(_HEAD), len(_CUT)), 0)
        if begins and not begins.startswith((_HEAD, _CUT)):
            os.close(descriptor)
            raise PermissionError(0, f"{self._path.name} already exists and is not a log of autofit's")
        return descriptor


def last_exception(output: str) -> str:
    """Returns the last line of an output, made safe to show, if it is that of an exception; else ""."""
    lines = [line for line in plain(output[-4000:], 4000).splitlines() if line.strip()]
    if not lines or not _EXCEPTION.match(lines[-1]):
        return ""
    return plain(redacted(lines[-1]), _REASON_LIMIT)


class Child:
    """One worker process under a supervisor (supervisor.py), in its own process group, with two pipes and a log.

    Not thread-safe. `kill` leaves no process behind: the supervisor ends all processes that the worker started, even if
    this process dies first.

    The `environment` has variables in addition to those of this process and of the nursery, which forks the process
    where that is possible; otherwise, and without a nursery, a fresh interpreter is started.

    Raises:
        ChildEnded: the nursery did not answer within `patience_s`.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        environment: Mapping[str, str],
        log: OutputLog,
        nursery: Nursery | None = None,
        patience_s: float = math.inf,
    ) -> None:
        self.deadlines = deadlines
        self._stepped = self._ended = False
        self._phase = ""
        self._buffer = self._tail = b""
        self._log = log
        pipes = [os.pipe() for _ in range(4)]
        (life_read, self._life), (requests_read, self._out), (self._in, replies_write), (self._printed, output) = pipes
        theirs = (life_read, requests_read, replies_write, output)
        try:
            patience_s = min(patience_s, deadlines.first_s)
            forked = None if nursery is None else nursery.fork(theirs, environment, patience_s)
            variables = {**os.environ, **(nursery.environment if nursery is not None else {}), **environment}
            given = {"life": life_read, "read": requests_read, "write": replies_write}
            self.process: ForkedProcess | subprocess.Popen[bytes] = forked or fresh(given, variables, output)
        except BaseException as error:
            for descriptor in (self._life, self._out, self._in, self._printed):
                os.close(descriptor)
            if isinstance(error, TimeoutError):
                reason = f"its process was not ready after {format_duration(patience_s)}"
                raise ChildEnded(Outcome(status=Status.TIMED_OUT, reason=reason)) from None
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self._drain = threading.Thread(target=self._keep_log, name="autofit-worker-log", daemon=True)
        self._drain.start()

    def ask(
        self,
        request: dict[str, Any],
        beat: Callable[[str], None] = lambda phase: None,
        patience_s: float = math.inf,
    ) -> dict[str, Any]:
        """Sends a request and returns the reply.

        `beat` is called with each phase that the child enters, as a sign of life. `patience_s` is the limit that the
        time budget sets for this request, in addition to the deadlines.

        Raises:
            ChildEnded: the child died, hung or sent an invalid reply. It is gone when this is raised.
        """
        self._phase = ""
        try:
            os.write(self._out, (json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            raise ChildEnded(self._died()) from None
        last = monotonic()
        end = last + min(self.deadlines.total_s, patience_s)
        too_long = f"not finished in {format_duration(min(self.deadlines.total_s, patience_s))}"
        if patience_s < self.deadlines.total_s:
            too_long += ", the limit that the time budget sets"
        while True:
            silence = self.deadlines.progress_s if self._stepped else self.deadlines.first_s
            until, why = min((last + silence, f"no sign of life for {format_duration(silence)}"), (end, too_long))
            line = self._line(until)
            if line is None:
                raise ChildEnded(self._hung(why))
            last = monotonic()
            reply = self._parsed(line)
            if reply["kind"] != "beat":
                return reply
            if last >= end:
                raise ChildEnded(self._hung(too_long))
            self._phase = str(reply.get("phase", ""))[:_REASON_LIMIT]
            self._stepped = self._stepped or self._phase == "step"
            beat(self._phase)

    def kill(self) -> None:
        """Ends the child and all processes that it started, and reaps it: SIGTERM, a grace period, then SIGKILL.

        A second Ctrl-C only cuts the grace period short.
        """
        try:
            if not self._ended:
                with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter if all are gone
                    os.killpg(self.process.pid, signal.SIGTERM)
        finally:
            self.close()

    def close(self) -> None:
        """Waits for the child to end by itself. After the grace period, kills it and all processes that it started."""
        if self._ended:
            return
        try:
            with suppress(subprocess.TimeoutExpired):  # a thread of the user's code may never end
                self.process.wait(self.deadlines.grace_s)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Has the supervisor kill the remaining processes, waits for it, and releases the pipes."""
        if self._ended:  # its process id may belong to another process by now
            return
        self._ended = True
        os.close(self._life)  # from here on the supervisor acts, even if this process dies
        try:
            with suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep; the kernel reaps it later
                self.process.wait(self.deadlines.exit_s)
        finally:
            self._end_group()
            self._selector.close()
            os.close(self._in)
            os.close(self._out)
            self._drain.join(1.0)
            if not self._drain.is_alive():
                os.close(self._printed)

    def _end_group(self) -> None:
        """Kills the child's process group and waits until it is gone, or only zombies are left that nobody reaps."""
        until = monotonic() + _GROUP_S
        with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group
            while monotonic() < until:
                os.killpg(self.process.pid, signal.SIGKILL)
                sleep(0.01)

    @property
    def ended(self) -> bool:
        """Whether the process is gone. It may have died since the last request."""
        return self._ended or self.process.poll() is not None

    @property
    def log(self) -> str:
        """The end of the child's output. It is private to the user: never show or store it elsewhere."""
        return self._tail.decode(errors="replace")

    def _line(self, until: float) -> bytes | None:
        """Returns the next line, or None if none arrives before `until`.

        A line that has arrived is returned even if it is late: this process may have been stopped (Ctrl-Z).
        """
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE_BYTES:
                return self._buffer
            dead = self.process.poll() is not None  # checked before the pipe, so that its last words are still read
            wait_s = 0.0 if dead else min(max(until - monotonic(), 0.0), _POLL_S)
            in_time = self._selector.select(wait_s)
            if not in_time and not self._selector.select(0):  # Ctrl-Z during the first wait may have cut it short
                if dead:
                    raise ChildEnded(self._died())
                if monotonic() < until:
                    continue
                return None
            chunk = os.read(self._in, 65536)
            if not chunk:
                raise ChildEnded(self._died())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(line)
            if isinstance(reply, dict) and isinstance(reply.get("kind"), str):
                return reply
        except (ValueError, RecursionError):
            pass
        self.kill()
        shown = line[:80].decode(errors="replace")
        raise ChildEnded(Outcome(status=Status.CRASHED, reason=f"the probe's process sent no valid reply: {shown!r}"))

    def _died(self) -> Outcome:
        try:
            code = self.process.wait(self.deadlines.grace_s)
        except subprocess.TimeoutExpired:
            code = None  # it closed its pipe but is still alive
        self.kill()
        signal_number = -code if code is not None and code < 0 else None
        verdict = classify(Evidence(chain=(), exit_signal=signal_number, exit_code=code))
        last = last_exception(self.log)
        reason = self._with_log(verdict.reason + self._doing(), f"its last line was {last!r}" if last else "")
        return Outcome(status=verdict.status, reason=reason)

    def _hung(self, why: str) -> Outcome:
        self.kill()
        return Outcome(status=Status.TIMED_OUT, reason=self._with_log(f"{why}{self._doing()}; its process was killed"))

    def _doing(self) -> str:
        return f" (it was in {self._phase!r})" if self._phase else ""

    def _with_log(self, *parts: str) -> str:
        """Returns a reason that names the log of the child's output. The child is gone, so the log is complete."""
        return "; ".join(part for part in (*parts, self._log.location() if self._tail else "") if part)

    def _keep_log(self) -> None:
        while chunk := os.read(self._printed, KEPT_BYTES):
            self._tail = (self._tail + chunk)[-KEPT_BYTES:]
            self._log.write(chunk, self._tail)
