"""Child: one worker process, asked over its own pipes, with two clocks and a kill that leaves nothing behind."""

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_duration
from autofit.failures.classify import classify
from autofit.failures.evidence import Evidence
from autofit.probing.remote.output import KEPT_BYTES, OutputLog, last_exception

_KEEPER = Path(__file__).parents[1] / "keeper.py"
_LINE_BYTES = 16 * 2**20
_LOOK_S = 0.1
"""So often it is seen whether the process still lives: a helper of its own may hold its pipe open after its death."""
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
    """One worker process under a keeper (keeper.py), in a session of its own, with its two pipes and what it prints.

    Not thread-safe. `kill` leaves no process behind: the keeper ends all that the worker started, also when this
    process dies first.

    Args:
        deadlines: how long to wait for it.
        environment: variables beside those of this process.
        log: where what it prints is kept.
    """

    def __init__(self, deadlines: Deadlines, environment: Mapping[str, str], log: OutputLog) -> None:
        self.deadlines = deadlines
        self._stepped = self._ended = False
        self._phase = ""
        self._buffer = self._tail = b""
        self._log = log
        (life_read, self._life), (requests_read, self._out), (self._in, replies_write) = (os.pipe() for _ in range(3))
        theirs = {"--life": life_read, "--read": requests_read, "--write": replies_write}
        # -P: a file in the working directory must not stand in for a module of the standard library.
        command = [sys.executable, "-P", str(_KEEPER), *(str(part) for pair in theirs.items() for part in pair)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                pass_fds=tuple(theirs.values()),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (self._life, self._out, self._in):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs.values():
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
        """Sends a request and returns the reply to it, passing signs of life on to `beat`.

        Args:
            request: what to do.
            beat: called with each phase that the child enters.
            patience_s: what the time budget leaves for this request; the deadlines hold beside it.

        Raises:
            ChildEnded: the child died, hung or sent what is no reply; it is gone when this is raised.
        """
        self._phase = ""
        try:
            os.write(self._out, (json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            raise ChildEnded(self._died()) from None
        last = monotonic()
        end = last + min(self.deadlines.total_s, patience_s)
        too_long = f"not done in {format_duration(min(self.deadlines.total_s, patience_s))}"
        if patience_s < self.deadlines.total_s:
            too_long += ", the most that the time budget leaves for it"
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
            self._phase = str(reply.get("phase", ""))
            self._stepped = self._stepped or self._phase == "step"
            beat(self._phase)

    def kill(self) -> None:
        """Ends the child and all that it started: a polite signal, a grace, then the last one; reaps it.

        A second Ctrl-C ends the grace, and nothing else.
        """
        if self._ended:
            return
        try:
            with suppress(ProcessLookupError, PermissionError):  # the latter is how macOS says that all are gone
                os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(self.deadlines.grace_s)
        finally:
            self._finish()

    def close(self) -> None:
        """Releases a child that ends by itself; one that does not in its grace is ended, as is all that it started."""
        if self._ended:
            return
        try:
            with suppress(subprocess.TimeoutExpired):  # a thread of the user's may never end
                self.process.wait(self.deadlines.grace_s)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Has the keeper kill what is left, waits for it, and releases the pipes."""
        if self._ended:  # its number may be another process's by now
            return
        self._ended = True
        os.close(self._life)  # from here on the keeper does it, whatever becomes of this process
        try:
            with suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep: the kernel reaps it when it can
                self.process.wait(self.deadlines.exit_s)
        finally:
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
        """Whether the process is gone, and cannot be asked any more; it may have died since it was last asked."""
        return self._ended or self.process.poll() is not None

    @property
    def log(self) -> str:
        """The last of what the child printed: for its owner, and nobody else."""
        return self._tail.decode(errors="replace")

    def _line(self, until: float) -> bytes | None:
        """Returns the next line, or None when none came until then.

        What has come is returned however late it is: it may be this process that was stopped (Ctrl-Z), not the child.
        """
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE_BYTES:
                return self._buffer
            dead = self.process.poll() is not None  # before the look at the pipe: what it said last comes first
            wait_s = 0.0 if dead else min(max(until - monotonic(), 0.0), _LOOK_S)
            in_time = self._selector.select(wait_s)
            if not in_time and not self._selector.select(0):  # a stop during the first wait ends it without a look
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
        said = last_exception(self.log)
        return Outcome(
            status=verdict.status, reason=self._told(verdict.reason, f"its last line was {said!r}" if said else "")
        )

    def _hung(self, why: str) -> Outcome:
        self.kill()
        doing = f" (it was in {self._phase!r})" if self._phase else ""
        return Outcome(status=Status.TIMED_OUT, reason=self._told(f"{why}{doing}; its process was killed"))

    def _told(self, *parts: str) -> str:
        """Returns a reason with the place of what the child printed; the child is gone, so that all of it is there."""
        return "; ".join(part for part in (*parts, self._log.told() if self._tail else "") if part)

    def _keep_log(self) -> None:
        output = self.process.stdout
        assert output is not None, "stdout is a pipe"
        while chunk := os.read(output.fileno(), KEPT_BYTES):
            self._tail = (self._tail + chunk)[-KEPT_BYTES:]
            self._log.write(chunk, self._tail)
