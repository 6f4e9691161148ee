"""Following: opens the listeners of a search before it begins, and ends them after it. None of them can end the search.

def listen(event):
if event.kind == "trial":
print(event.done, event.trial.plan, event.trial.outcome.status)

fit = autofit.tune(model, loader, listeners=[listen])
"""

import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from autofit import trackers
from autofit.core.errors import UsageError
from autofit.core.printable import one_line, redacted
from autofit.search.request import Event, Listen
from autofit.trackers.base import Tracker
from autofit.trackers.run_log import Attach, RunLog

Warn = Callable[[str], None]
"""Shows one line of text to the user."""


Listener = Listen
"""A callable that receives each event of a search.

**Order.** A search begins with "start", which carries the request and its environment; only "stage" may come earlier,
while the search waits for its study. Then come "stage", "trial", "skipped", "race" (after each round, with the
standings) and "proof". The last event is "result", with everything that the search found. It also comes if the search
ends with an error, but not if the user interrupts it.

**Where.** A listener is called in the thread that called `tune`, or, for `autofit tune`, in the process that does not
load the user's code. It is called between two runs and never while a plan is timed. Calls do not overlap.

**What it must not do.** It must not change the model, the optimizer or the data, use the device, or draw random
numbers. It should return quickly: its time counts against the time budget. Work that it leaves to another thread runs
while plans are timed and disturbs the measurements. Events and their records are immutable.

**Errors.** A search never ends because a listener fails. After its first exception a listener gets no further events,
and the user gets one warning. `KeyboardInterrupt` and other exceptions that do not derive from `Exception` end the
search. (The `progress` argument of `tune` is different: its exceptions end the search.)
"""


def fail_soft(listener: Listener, warn: Warn) -> Listen:
    """Returns what calls a listener until it raises its first exception, which becomes a warning."""
    failed = False

    def listen(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001  # a listener may raise any exception
            failed = True
            name = getattr(listener, "__qualname__", type(listener).__qualname__)
            warn(f"the listener {name} failed and gets no further events: {_said(error)}")

    return listen


def warn_user(text: str) -> None:
    """Issues a RuntimeWarning. Where warnings are errors, writes it to stderr, because a search must not stop."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        with suppress(Exception):
            sys.stderr.write(f"autofit: {text}\n")


PATIENCE_S, PATIENCE_RATIO = 10.0, 0.05
"""Maximum time that a search waits for one tracker, all waits together: this many seconds, or this share of the time
budget if that is less; and this share of the time since the search began."""
FLUSH_S = 5.0
"""Maximum time after the search until the last events of a tracker are logged."""
MAX_REASON = 300
"""Maximum number of characters of an error that is shown."""


class Background:
    """A tracker in a thread of its own, so that a server that does not answer cannot stop a search.

    A search waits until an event is logged, so that logging does not run while a plan is timed. All waits of one search
    together are limited: to `patience_s`, and a share of the time since it began. The events of a slow tracker then
    queue up. `warn` shows a failure, at most once, in the thread of the search.
    """

    def __init__(self, tracker: Tracker, warn: Warn, attach: Attach, patience_s: float = PATIENCE_S) -> None:
        self._tracker, self._warn, self._log = tracker, warn, RunLog(tracker, attach)
        self._queue: queue.Queue[tuple[Event | None, threading.Event]] = queue.Queue()
        self._patience_s, self._waited_s, self._began_s = patience_s, 0.0, time.monotonic()
        self._failure, self._warned = "", False
        self._thread = threading.Thread(target=self._work, name=f"autofit {tracker.name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Has one event logged."""
        if not self._failure:
            began_s = time.monotonic()
            left_s = self._patience_s + PATIENCE_RATIO * (began_s - self._began_s) - self._waited_s
            self._put(event).wait(max(left_s, 0.0))
            self._waited_s += time.monotonic() - began_s
        self._warn_once(self._failure)

    def close(self) -> None:
        """Ends the run. What is not logged within `FLUSH_S` may be lost."""
        late = f"did not finish within {FLUSH_S:g} s after the search; what it logged may be incomplete"
        if self._put(None).wait(FLUSH_S):
            self._thread.join()
            late = ""
        self._warn_once(self._failure or late)

    def _put(self, event: Event | None) -> threading.Event:
        """Queues an event, or the end; returns what is set once it is logged."""
        done = threading.Event()
        self._queue.put((event, done))
        return done

    def _warn_once(self, what: str) -> None:
        if what and not self._warned:
            self._warned = True
            self._warn(f"the tracker {self._tracker.name} {what}. The search is not affected.")

    def _work(self) -> None:
        self._attempt(self._tracker.connect)
        event: Event | None
        while True:
            event, done = self._queue.get()
            self._attempt(self._log.close if event is None else partial(self._log, event))
            done.set()
            if event is None:
                return

    def _attempt(self, call: Callable[[], None]) -> None:
        """Calls the tracker unless it has failed."""
        if self._failure:
            return
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # foreign code may raise any exception
            self._failure = f"failed and gets no further events: {_said(error)[:MAX_REASON]}"
            with suppress(Exception, SystemExit):  # a run that stays open looks as if it went on
                self._log.close()


def _said(error: BaseException) -> str:
    return one_line(redacted(f"{type(error).__name__}: {error}"))


@contextmanager
def following(
    given: Sequence[Listener | str],
    *,
    warn: Warn = warn_user,
    attach: Attach = lambda result: {},
    time_s: float | None = None,
) -> Iterator[list[Listen]]:
    """Gives the listeners of a search. None of them can end it.

    Args:
        given: callables, and names of trackers as "NAME" or "NAME:PLACE".
        warn: shows a failure of a listener; called at most once for each.
        attach: makes further documents for trackers from the result.
        time_s: time budget of the search; None without one.

    Raises:
        UsageError: an element is neither a callable nor the name of a tracker, or a package cannot be imported.
    """
    found = [_made(each) for each in ([given] if isinstance(given, str) else given)]  # all, before any begins
    patience_s = PATIENCE_S if time_s is None else min(PATIENCE_S, PATIENCE_RATIO * time_s)
    listeners = [
        Background(each, warn, attach, patience_s) if isinstance(each, Tracker) else fail_soft(each, warn)
        for each in found
    ]
    try:
        yield listeners
    finally:
        for listener in listeners:
            if isinstance(listener, Background):
                listener.close()


def _made(given: Listener | str) -> Listener | Tracker:
    if isinstance(given, str):
        return trackers.make(given)
    if callable(given):
        return given
    raise UsageError(
        f"found {given!r} among the listeners; expected a callable, or the name of a tracker such as 'tensorboard'."
    )
