"""Child: one worker process, asked over its own pipes, with two clocks and a kill that leaves nothing behind."""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_duration
from autofit.probing.evidence import Evidence
from autofit.probing.failures import classify

_LOG_BYTES = 2**16
_LINE_BYTES = 16 * 2**20
_GROUP_S = 1.0  # for processes that were killed to be gone


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Two clocks and the patience after them, in seconds (reference/reliability.md, constants).

    Attributes:
        first_s: silence allowed until the first steps of a process are done: imports, compilation.
        progress_s: silence allowed afterwards.
        total_s: one request in all.
        grace_s: between the polite signal and the last one.
        exit_s: waiting for a killed process to be gone.
    """

    first_s: float = 600.0
    progress_s: float = 120.0
    total_s: float = 1800.0
    grace_s: float = 5.0
    exit_s: float = 60.0


class ChildEnded(Exception):
    """The child died or was killed while a reply was awaited; carries the outcome that this means."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Child:
    """One worker process in a session of its own, with its two pipes and its captured output.

    Not thread-safe. `kill` leaves no process of its group behind.
    """

    def __init__(self, deadlines: Deadlines, environment: Mapping[str, str]) -> None:
        self.deadlines = deadlines
        self._stepped = self._ended = False
        self._buffer = self._log = b""
        requests_read, requests_write = os.pipe()
        replies_read, replies_write = os.pipe()
        command = [sys.executable, "-m", "autofit.probing.worker"]
        command += ["--read", str(requests_read), "--write", str(replies_write)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                pass_fds=(requests_read, replies_write),
                start_new_session=True,
            )
        except BaseException:
            os.close(requests_write)
            os.close(replies_read)
            raise
        finally:
            os.close(requests_read)
            os.close(replies_write)
        self._out, self._in = requests_write, replies_read
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self._drain = threading.Thread(target=self._keep_log, name="autofit-worker-log", daemon=True)
        self._drain.start()

    def ask(self, request: dict[str, Any], beat: Callable[[str], None] = lambda phase: None) -> dict[str, Any]:
        """Sends a request and returns the reply to it, passing signs of life on to `beat`.

        Raises:
            ChildEnded: the child died, hung or sent what is no reply; it is gone when this is raised.
        """
        try:
            os.write(self._out, (json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            raise ChildEnded(self._died()) from None
        last = monotonic()
        end, too_long = last + self.deadlines.total_s, f"not done in {format_duration(self.deadlines.total_s)}"
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
            self._stepped = self._stepped or reply.get("phase") == "step"
            beat(str(reply.get("phase", "")))

    def kill(self) -> None:
        """Ends the whole process group: a polite signal, a grace, then the last one; reaps the child."""
        if self._ended:
            return
        for sign, patience in ((signal.SIGTERM, self.deadlines.grace_s), (signal.SIGKILL, self.deadlines.exit_s)):
            try:
                os.killpg(self.process.pid, sign)
            except (ProcessLookupError, PermissionError):  # the latter is how macOS says that all are gone
                break
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        self.close()

    def close(self) -> None:
        """Releases the pipes and reaps a child that has ended; kills what its group left behind."""
        if self._ended:  # its number may be another process's by now
            return
        self._ended = True
        with suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep: the kernel reaps it when it can
            self.process.wait(self.deadlines.exit_s)
        self._end_group()
        self._selector.close()
        os.close(self._in)
        os.close(self._out)
        self._drain.join(1.0)
        if not self._drain.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()

    def _end_group(self) -> None:
        """Kills what the child started and waits until it is gone, or is left as a zombie that nobody reaps."""
        until = monotonic() + _GROUP_S
        with suppress(ProcessLookupError, PermissionError):  # nothing is left of the group
            while monotonic() < until:
                os.killpg(self.process.pid, signal.SIGKILL)
                sleep(0.01)

    @property
    def ended(self) -> bool:
        """Whether the process is gone, and cannot be asked any more."""
        return self._ended

    @property
    def log(self) -> str:
        """The last of what the child printed."""
        return self._log.decode(errors="replace")

    def _line(self, until: float) -> bytes | None:
        """Returns the next line, or None when none came until then.

        What has come is returned however late it is: it may be this process that was stopped (Ctrl-Z), not the child.
        """
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE_BYTES:
                return self._buffer
            in_time = self._selector.select(max(until - monotonic(), 0))
            if not in_time and not self._selector.select(0):  # a stop during the first wait ends it without a look
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
        except ValueError:
            pass
        self.kill()
        shown = line[:80].decode(errors="replace")
        raise ChildEnded(Outcome(status=Status.CRASHED, reason=f"the probe's process sent no valid reply: {shown!r}"))

    def _died(self) -> Outcome:
        try:
            code = self.process.wait(self.deadlines.grace_s)
        except subprocess.TimeoutExpired:
            code = None  # it closed its pipe and lives on
        self.kill()
        signal_number = -code if code is not None and code < 0 else None
        verdict = classify(Evidence(chain=(), exit_signal=signal_number, exit_code=code))
        return Outcome(status=verdict.status, reason=verdict.reason, traceback_text=self.log[-4000:])

    def _hung(self, why: str) -> Outcome:
        self.kill()
        reason = f"{why}; its process was killed"
        return Outcome(status=Status.TIMED_OUT, reason=reason, traceback_text=self.log[-4000:])

    def _keep_log(self) -> None:
        output = self.process.stdout
        assert output is not None, "stdout is a pipe"
        while chunk := os.read(output.fileno(), _LOG_BYTES):
            self._log = (self._log + chunk)[-_LOG_BYTES:]
