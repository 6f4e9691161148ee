"""Background: a tracker in a thread of its own, so that a server that does not answer cannot stop a search.

A search waits until an event is logged, so that logging does not run while a plan is timed. All waits of one search
together are limited, so that a tracker that hangs costs the search little. The events of a slow tracker then queue up.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from autofit.core.printable import one_line
from autofit.core.redaction import redacted
from autofit.search.event import Event
from autofit.trackers.base import Tracker
from autofit.trackers.listener import Warn
from autofit.trackers.run_log import Attach, RunLog

PATIENCE_S, PATIENCE_RATIO = 10.0, 0.05
"""Maximum time that a search waits for one tracker, all waits together: this many seconds, or this share of the time
budget if that is less; and this share of the time since the search began."""
FLUSH_S = 5.0
"""Maximum time after the search until the last events of a tracker are logged."""
MAX_EVENTS = 1000
"""Maximum number of events that wait for a slow tracker. Later ones are lost, except the result."""

MAX_REASON = 300
"""Maximum number of characters of an error that is shown."""


class Background:
    """A tracker in a thread of its own; one object per search.

    Args:
        tracker: receives the events.
        warn: shows a failure. Called at most once, in the thread of the search.
        attach: makes further documents from the result.
        patience_s: time in seconds that the search waits for this tracker, beside a share of the time since it began.
    """

    def __init__(self, tracker: Tracker, warn: Warn, attach: Attach, patience_s: float = PATIENCE_S) -> None:
        self._tracker, self._warn, self._log = tracker, warn, RunLog(tracker, attach)
        self._queue: queue.Queue[tuple[Event | None, threading.Event]] = queue.Queue()
        self._patience_s, self._waited_s, self._began_s = patience_s, 0.0, time.monotonic()
        self._lost, self._failure, self._warned = 0, "", False
        self._thread = threading.Thread(target=self._work, name=f"autofit {tracker.name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Has one event logged."""
        if self._failure:
            self._warn_once(self._failure)
        elif self._queue.qsize() >= MAX_EVENTS and event.result is None:
            self._lost += 1
        else:
            self._wait(self._put(event))

    def close(self) -> None:
        """Ends the run. What is not logged within `FLUSH_S` may be lost."""
        done = self._put(None).wait(FLUSH_S)
        if done:
            self._thread.join()
        if self._failure:
            self._warn_once(self._failure)
        elif not done:
            self._warn_once(f"did not finish within {FLUSH_S:g} s after the search; what it logged may be incomplete")
        elif self._lost:
            self._warn_once(f"was too slow; {self._lost} events were not logged")

    def _put(self, event: Event | None) -> threading.Event:
        done = threading.Event()
        self._queue.put((event, done))
        return done

    def _wait(self, done: threading.Event) -> None:
        began_s = time.monotonic()
        left_s = self._patience_s + PATIENCE_RATIO * (began_s - self._began_s) - self._waited_s
        done.wait(max(left_s, 0.0))
        self._waited_s += time.monotonic() - began_s
        if self._failure:
            self._warn_once(self._failure)

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"the tracker {self._tracker.name} {what}. The search is not affected.")

    def _work(self) -> None:
        self._attempt(self._tracker.connect)
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
            found = one_line(redacted(f"{type(error).__name__}: {error}"))[:MAX_REASON]
            self._failure = f"failed and gets no further events: {found}"
            with suppress(Exception, SystemExit):  # a run that stays open looks as if it went on
                self._log.close()
