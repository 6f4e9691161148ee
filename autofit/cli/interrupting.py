"""Interrupting: SIGTERM as a KeyboardInterrupt, so that child processes are ended and records are kept."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminable(next_step: str) -> Iterator[None]:
    """Turns SIGTERM into a KeyboardInterrupt while the context is open.

    Args:
        next_step: what the user can do then, for the message.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt(f"terminated; {next_step}")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
