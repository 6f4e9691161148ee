"""Listener: a callable that follows a search.

    def listen(event):
        if event.kind == "trial":
            print(event.done, event.trial.plan, event.trial.outcome.status)

    fit = autofit.tune(model, loader, listeners=[listen])

Its errors never stop the search.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Protocol

from autofit.core.printable import one_line
from autofit.core.redaction import redacted
from autofit.search.event import Event

Warn = Callable[[str], None]
"""Shows one line of text to the user."""


class Listener(Protocol):
    """A callable that receives each event of a search.

    **Order.** A search begins with "start", which carries the request and its environment; only "stage" may come
    earlier, while the search waits for its study. Then come "stage", "trial", "skipped", "race" (after each round, with
    the standings) and "proof". The last event is "result", with everything that the search found. It also comes if the
    search ends with an error, but not if the user interrupts it.

    **Where.** A listener is called in the thread that called `tune`, or, for `autofit tune`, in the process that does
    not load the user's code. It is called between two runs and never while a plan is timed. Calls do not overlap.

    **What it must not do.** It must not change the model, the optimizer or the data, use the device, or draw random
    numbers. It should return quickly: its time counts against the time budget. Work that it leaves to another thread
    runs while plans are timed and disturbs the measurements. Events and their records are immutable.

    **Errors.** A search never ends because a listener fails. After its first exception a listener gets no further
    events, and the user gets one warning. `KeyboardInterrupt` and other exceptions that do not derive from `Exception`
    end the search. (The `progress` argument of `tune` is different: its exceptions end the search.)
    """

    def __call__(self, event: Event, /) -> None:
        """Receives one event."""
        ...


class FailSoft:
    """Calls a listener until it raises its first exception, which becomes a warning.

    Args:
        listener: the listener.
        warn: shows the warning.
    """

    def __init__(self, listener: Listener, warn: Warn) -> None:
        self._listener, self._warn = listener, warn
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Passes on one event."""
        if self._failed:
            return
        try:
            self._listener(event)
        except Exception as error:  # noqa: BLE001  # a listener may raise any exception
            self._failed = True
            name = getattr(self._listener, "__qualname__", type(self._listener).__qualname__)
            found = one_line(redacted(f"{type(error).__name__}: {error}"))
            self._warn(f"the listener {name} failed and gets no further events: {found}")

    def close(self) -> None:
        """Does nothing. A listener has no end of its own."""


def warn_user(text: str) -> None:
    """Issues a RuntimeWarning. Where warnings are errors, writes it to stderr, because a search must not stop."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"autofit: {text}\n")
