"""Uninterrupted: signals wait until something is whole again: a record on disk, a process reaped, objects restored."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

FROM_OUTSIDE = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a scheduler sends."""
SIGNAL: int | None = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))
"""The signal that interrupts overdue work: one that no debugger, test runner or scheduler uses."""
EVERY = FROM_OUTSIDE if SIGNAL is None else (*FROM_OUTSIDE, SIGNAL)
"""`FROM_OUTSIDE` and `SIGNAL`."""


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
