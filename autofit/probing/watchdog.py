"""Watchdog: reports code that has given no sign of life for long, and stops it when its share of the time is used up.

A thread watches while the main thread works. To stop the work, it sends a signal to the main thread, whose handler
raises `Overdue` there: in the user's code, at the next line of Python, also out of a sleep or a wait for a lock.

* It does not interrupt the guard, which puts the user's objects back (`PROTECTED`), code outside `Watchdog.allowed`, or
  code in which Python ignores exceptions. It tries again a moment later. Code that the guard calls, such as a
  `load_state_dict` of the user's, may hang and is interrupted: after every `allowed` call all is put back again.
* It only reports, and cannot interrupt, a single library call that does not return. The same holds if `tune` does not
  run in the main thread, and on Windows, where Python has no such signals. Code that calls `Watchdog.check` is stopped
  in these cases too. A call that holds Python's global interpreter lock is not even reported. A child process can be
  killed at any time (child.py).
"""

import math
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from autofit.core.budget import Clock
from autofit.core.outcome import COMPILING
from autofit.core.uninterrupted import SIGNAL, ignores_exceptions
from autofit.core.units import format_duration

PROTECTED = ("autofit.guard", "autofit.study")
"""Packages that are never interrupted, except in code of others that they call."""
_OF_THE_GUARD = (sys.stdlib_module_names | {"autofit", "torch"}) - {"__main__"}
"""Packages whose code the guard runs by itself."""
WAITING = "wait"
"""Name of the phase in which another tuner's lock is waited for. A silence in it is expected and not reported."""
FIRST_REPORT_S, FIRST_REPORT_RATIO, LEAST_REPORT_S = 30.0, 0.25, 2.0
"""Silence before the first report: `FIRST_REPORT_S` seconds or this share of the time budget, whichever is shorter, but
at least `LEAST_REPORT_S` seconds: a shorter silence is usual, and a report of it reads as an alarm. Compilers are
silent for minutes: the first report of them comes after `FIRST_REPORT_S` at any budget, and reads as a stage."""
_POLL_S = 0.2
_RAISE_AGAIN_S = 5.0
"""Time after which `Overdue` is raised again, since the user's code may catch it."""

_Result = TypeVar("_Result")


class Overdue(BaseException):
    """The share of the time budget is used up. Not an `Exception`, because the user's code may catch those."""


class Watchdog:
    """Watches a search; a context manager. If it was not entered, it stops and reports nothing.

    `say` receives the reports, in the watchdog's thread.
    """

    def __init__(self, clock: Clock | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        self.clock = clock or Clock()
        self._say = say
        self._phase = ("beginning", 0.0)  # one object, since two threads use it
        self._reported: tuple[str, float] | None = None  # the phase that `_report_after_s` belongs to
        self._report_after_s = 0.0
        self._until = math.inf
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._ended), name="autofit-watchdog", daemon=True
        )
        self._worker, self._interrupts = 0, False
        self._before: Any = None

    @property
    def doing(self) -> str:
        """The current phase."""
        return self._phase[0]

    def beat(self, phase: str) -> None:
        """Records the start of a phase, which is a sign of life."""
        self._phase = (phase, self.clock.elapsed_s)

    def allowed(self, work: Callable[[], _Result], most_s: float = math.inf) -> _Result:
        """Runs `work` within the remaining time and returns its result.

        `work` may call `allowed` again, with less time.

        Raises:
            Overdue: `work` took longer than that, or than `most_s` seconds.
        """
        patience_s = min(self.clock.patience_s(), most_s)
        if patience_s <= 0:
            raise Overdue(f"{self._over()} before it began")
        before = self._until
        self._until = min(before, self.clock.elapsed_s + patience_s)
        try:
            return work()
        finally:
            self._until = before

    def check(self) -> None:
        """Raises if the running `allowed` call is overdue. Long-running code calls it where no signal can interrupt.

        Raises:
            Overdue: the call took longer than allowed.
        """
        if self.clock.elapsed_s >= self._until:
            raise Overdue(self._over())

    @contextmanager
    def telling(self, say: Callable[[str], None]) -> Iterator[None]:
        """Sends the reports to `say` while the context is open."""
        before, self._say = self._say, say
        try:
            yield
        finally:
            self._say = before

    def __enter__(self) -> Self:
        self._phase = ("inspecting the workload", self.clock.elapsed_s)
        self._worker = threading.get_ident()
        main = threading.current_thread() is threading.main_thread()
        self._interrupts = main and SIGNAL is not None
        if self._interrupts and SIGNAL is not None:
            self._before = signal.signal(SIGNAL, _handler(weakref.ref(self)))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._interrupts and SIGNAL is not None:
            signal.signal(SIGNAL, self._before)

    def _look(self) -> None:
        """Reports a phase that takes long, and interrupts overdue work. Runs in the watchdog's thread."""
        phase, now = self._phase, self.clock.elapsed_s
        if phase is not self._reported:
            limit_s = self.clock.limit_s
            self._reported = phase
            patient = limit_s is None or phase[0] == COMPILING
            first_s = FIRST_REPORT_S if patient else min(FIRST_REPORT_S, FIRST_REPORT_RATIO * (limit_s or 0.0))
            self._report_after_s = max(first_s, LEAST_REPORT_S)
        if phase[0] != WAITING and now - phase[1] >= self._report_after_s:
            self._report_after_s *= 2
            duration = format_duration(now - phase[1])
            text = f"no sign of life for {duration}: {phase[0]!r} is still running"
            with suppress(Exception):  # an error of the user's listener must not stop the watchdog
                self._say(f"compiling for {duration} so far" if phase[0] == COMPILING else text)
        if self._interrupts and now >= self._until and SIGNAL is not None and not self._ended.is_set():
            signal.pthread_kill(self._worker, SIGNAL)

    def _interrupt(self, frame: FrameType | None) -> None:
        """Ends overdue work, in the thread that works."""
        now = self.clock.elapsed_s
        if now >= self._until and _may_interrupt(frame) and not ignores_exceptions(frame):
            self._until = now + _RAISE_AGAIN_S
            phase, since_s = self._phase
            raise Overdue(f"{self._over()}: {phase!r} had been running for {format_duration(now - since_s)}")

    def _over(self) -> str:
        limit_s = self.clock.limit_s or 0.0
        if self.clock.left_s > 0:
            return f"not finished in the time that it was given of the budget of {format_duration(limit_s)}"
        return f"the time budget of {format_duration(limit_s)} ran out"


def _watch(watched: weakref.ref[Watchdog], ended: threading.Event) -> None:
    """Watches until `ended` is set or the watchdog is garbage: Ctrl-C may come before a `with` block holds it."""
    while not ended.wait(_POLL_S):
        watchdog = watched()
        if watchdog is None:
            return
        watchdog._look()
        del watchdog


def _handler(watched: weakref.ref[Watchdog]) -> Callable[[int, FrameType | None], None]:
    """Returns the handler of the signal, which does nothing once the watchdog is garbage."""

    def handle(number: int, frame: FrameType | None) -> None:
        watchdog = watched()
        if watchdog is not None:
            watchdog._interrupt(frame)

    return handle


def _may_interrupt(frame: FrameType | None) -> bool:
    """Returns whether a frame runs, at any depth, inside `Watchdog.allowed` and not for a protected package alone."""
    inner = others = False
    while frame is not None:
        if frame.f_code is Watchdog.allowed.__code__:
            return inner
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(PROTECTED) and not others:
            return False
        others = others or name.partition(".")[0] not in _OF_THE_GUARD
        inner, frame = True, frame.f_back
    return False
