"""Interrupting: SIGINT and SIGTERM as a KeyboardInterrupt, so that child processes are ended and records are kept."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from autofit.failures.ignored_exceptions import ignores_exceptions

AGAIN_S = 0.05
"""Time after which a signal is sent again that came where Python ignores exceptions."""


@contextmanager
def terminable(next_step: str) -> Iterator[None]:
    """Turns SIGINT, unless it is ignored, and SIGTERM into a KeyboardInterrupt while the context is open.

    Args:
        next_step: what the user can do then, for the message.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if ignores_exceptions(frame):
            again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        raise KeyboardInterrupt(*([f"terminated; {next_step}"] if number == signal.SIGTERM else []))

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or the caller handles it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
