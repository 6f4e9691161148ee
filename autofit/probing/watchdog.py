"""Watchdog: says what has not given a sign of life for long, and ends it when its part of the time budget is used up.

A thread looks on while the process's own thread works. It ends what runs by a signal to that thread, whose handler
raises `Overdue` there: in the user's code, at the next line of Python, also out of a sleep or a wait for a lock. It
does not

* interrupt the guard, which puts the user's objects back (`PROTECTED`), nor anything outside `Watchdog.allowed`;
* interrupt one call into a library that does not return: Python gets no turn. Then it only says so, and so it does
  where `tune` runs in another thread than the main one, or on Windows, where Python has no such signals; what asks
  (`Watchdog.check`) ends there too;
* say anything while such a call holds Python's global lock.

The command line probes in a process of its own, which can be killed whatever it does (child.py).
"""

import math
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from autofit.core.budget import Clock
from autofit.core.units import format_duration

PROTECTED = ("autofit.guard", "autofit.study")
"""Packages that are not interrupted: what they began they end."""
FIRST_WORD_S, FIRST_WORD_RATIO = 30.0, 0.25
"""Silence after which it is said what goes on: so many seconds, or this share of the time budget, whichever is less."""
_LOOK_S = 0.2
_AGAIN_S = 5.0
"""The user's code may catch what ends it: it is then raised again."""
# Nobody's, unlike those that a debugger, a test runner or a scheduler uses.
_SIGNAL: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))

_Result = TypeVar("_Result")


class Overdue(BaseException):
    """The part of the time budget that was for this is used up. Not an `Exception`, which user's code may catch."""


class Watchdog:
    """Looks on while a search runs; a context manager. Without entering it, it allows everything and says nothing.

    Args:
        clock: what is left of the time budget.
        say: told, in a thread of the watchdog's, what has gone on for long.
    """

    def __init__(self, clock: Clock | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        self.clock = clock or Clock()
        self._say = say
        self._doing = ("beginning", 0.0)  # one object, since two threads use it
        self._told: tuple[str, float] | None = None  # of which phase `_word_s` is
        self._word_s = 0.0
        self._until = math.inf
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=_look_on, args=(weakref.ref(self), self._ended), name="autofit-watchdog", daemon=True
        )
        self._worker, self._interrupts = 0, False
        self._before: Any = None

    @property
    def doing(self) -> str:
        """The phase that goes on now."""
        return self._doing[0]

    def beat(self, phase: str) -> None:
        """Notes that a phase begins: a sign of life."""
        self._doing = (phase, self.clock.elapsed_s)

    def allowed(self, work: Callable[[], _Result], share: float = 1.0, most_s: float = math.inf) -> _Result:
        """Returns what `work` returns, which may take its share of the time that is left.

        Args:
            work: what to do; it may have a part of itself allowed less.
            share: of the time that is left, see `Clock.patience_s`.
            most_s: seconds that it may take at most.

        Raises:
            Overdue: it took longer.
        """
        patience_s = min(self.clock.patience_s(share), most_s)
        if patience_s <= 0:
            raise Overdue(f"{self._over()} before it began")
        before, self._until = self._until, self.clock.elapsed_s + patience_s
        try:
            return work()
        finally:
            self._until = before

    def check(self) -> None:
        """Ends what is allowed and overdue where no signal can: asked from time to time in what may take long.

        Raises:
            Overdue: it took longer than it may.
        """
        if self.clock.elapsed_s >= self._until:
            raise Overdue(self._over())

    @contextmanager
    def telling(self, say: Callable[[str], None]) -> Iterator[None]:
        """Has what goes on for long told to `say` instead, for as long as the context is open."""
        before, self._say = self._say, say
        try:
            yield
        finally:
            self._say = before

    def __enter__(self) -> Self:
        self._doing = ("looking at the workload", self.clock.elapsed_s)
        self._worker = threading.get_ident()
        main = threading.current_thread() is threading.main_thread()
        self._interrupts = main and _SIGNAL is not None and self.clock.limit_s is not None
        if self._interrupts and _SIGNAL is not None:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._interrupts and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._before)

    def _look(self) -> None:
        """Says what goes on for long, and ends what is overdue; from the thread that looks on."""
        doing, now = self._doing, self.clock.elapsed_s
        if doing is not self._told:
            limit_s = self.clock.limit_s
            self._told = doing
            self._word_s = FIRST_WORD_S if limit_s is None else min(FIRST_WORD_S, FIRST_WORD_RATIO * limit_s)
        if now - doing[1] >= self._word_s:
            self._word_s *= 2
            with suppress(Exception):  # the user's listener; nobody could hear it here, and looking on goes on
                self._say(f"no sign of life for {format_duration(now - doing[1])}: {doing[0]!r} goes on")
        if self._interrupts and now >= self._until and _SIGNAL is not None and not self._ended.is_set():
            signal.pthread_kill(self._worker, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal, in the thread that works."""
        now = self.clock.elapsed_s
        if now >= self._until and _may_end(frame):
            self._until = now + _AGAIN_S
            phase, since_s = self._doing
            raise Overdue(f"{self._over()}: {phase!r} had gone on for {format_duration(now - since_s)}")

    def _over(self) -> str:
        limit_s = self.clock.limit_s or 0.0
        if self.clock.left_s > 0:
            return f"not done in its part of the time budget of {format_duration(limit_s)}"
        return f"the time budget of {format_duration(limit_s)} was over"


def _look_on(watched: weakref.ref[Watchdog], ended: threading.Event) -> None:
    """Looks on until it is over, or until nobody has the watchdog any more: Ctrl-C may come before `with` has it."""
    while not ended.wait(_LOOK_S):
        watchdog = watched()
        if watchdog is None:
            return
        watchdog._look()
        del watchdog


def _may_end(frame: FrameType | None) -> bool:
    """Whether a frame runs, however deep, for `Watchdog.allowed`, and not in what is protected."""
    inner = False
    while frame is not None:
        if frame.f_code is Watchdog.allowed.__code__:
            return inner
        if str(frame.f_globals.get("__name__", "")).startswith(PROTECTED):
            return False
        inner, frame = True, frame.f_back
    return False
