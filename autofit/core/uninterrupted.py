"""Uninterrupted: signals wait until a record is on disk or objects are restored, and where exceptions are ignored."""

import inspect
import logging
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a scheduler sends."""
SIGNAL: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))
"""The signal that interrupts overdue work: one that no debugger, test runner or scheduler uses."""
EVERY = FROM_OUTSIDE if SIGNAL is None else (*FROM_OUTSIDE, SIGNAL)
"""`FROM_OUTSIDE` and `SIGNAL`."""
_CALLED_BACK = tuple(inspect.getfile(found) for found in (weakref, weakref.WeakSet))
"""Modules that call back when an object ends."""
_AT_FORK = frozenset({"_acquireLock", "_releaseLock", "_prepareFork", "_afterFork"})
"""Functions of `logging` that Python calls around a fork, under their names of 3.11 to 3.14."""


@contextmanager
def uninterrupted(*signals: int) -> Iterator[list[int]]:
    """Holds signals back while the context is open; they are delivered when it ends.

    Only the main thread has signal handlers. In another one, nothing is held back. A handler that the body installs
    stays, and gets what was held back. A signal whose handler was installed outside Python is not held, since Python
    could not install it again. Without numbers, the signals of `FROM_OUTSIDE` are held.

    Yields:
        The numbers of the signals that have arrived so far.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def remember(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    numbers = signals or FROM_OUTSIDE
    held = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    try:
        for number in held:
            signal.signal(number, remember)
        yield arrived
    finally:
        for number, handler in held.items():
            if signal.getsignal(number) is remember:
                signal.signal(number, handler)
        for number in held:
            if number in arrived:
                signal.raise_signal(number)


def ignores_exceptions(frame: FrameType | None) -> bool:
    """Returns whether a frame runs in a finalizer (`__del__`), the callback of a weak reference, or a hook of a fork.

    Python prints an exception that leaves one of these, and continues. The handler of a signal that interrupted such a
    frame should then do nothing, and the signal come again a little later.
    """
    while frame is not None:
        code = frame.f_code
        at_fork = code.co_name in _AT_FORK and code.co_filename == logging.__file__
        if code.co_name == "__del__" or at_fork or code.co_filename in _CALLED_BACK or _is_called_back(frame):
            return True
        frame = frame.f_back
    return False


def _is_called_back(frame: FrameType) -> bool:
    """Returns whether the only argument of a frame's function is a weak reference whose object has ended."""
    code = frame.f_code
    if code.co_argcount != 1:
        return False
    given = frame.f_locals.get(code.co_varnames[0])
    return isinstance(given, weakref.ref) and given() is None
