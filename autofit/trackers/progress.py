"""Progress: shows the events of a search as they happen. Writes to stderr only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from autofit.core.outcome import Status
from autofit.core.printable import one_line
from autofit.core.wording import describe_outcome
from autofit.search.event import Event
from autofit.trackers.live import LiveLine
from autofit.trackers.search_state import SearchState, Yardstick


class Progress:
    """Shows events: finished trials above a live line on a terminal, plain lines elsewhere; one object per search."""

    def __init__(self, stream: TextIO, against: Yardstick | None = None) -> None:
        against = against or Yardstick()
        self._stream, self._unit = stream, against.objective.unit
        self._state = SearchState(against)
        self._live = LiveLine(stream, self._state.live) if stream.isatty() else None

    def __call__(self, event: Event) -> None:
        """Shows one event. The result is for the caller to print."""
        if event.kind == "result":
            return
        if self._live is not None:
            self._live.scroll(self._state.tell(event))
        elif event.trial is None or event.trial.outcome.status is not Status.SKIPPED:
            # Reasons come from the user's code.
            print(f"autofit: {one_line(self._plain(event))}", file=self._stream, flush=True)

    def close(self) -> None:
        """Takes the live line off the terminal."""
        if self._live is not None:
            self._live.close()

    def _plain(self, event: Event) -> str:
        if event.trial is None:
            return event.text
        proof = "proof of " if event.kind == "proof" else ""
        return f"{proof}{event.trial.plan}: {describe_outcome(event.trial.outcome, self._unit)}"

    @classmethod
    @contextmanager
    def of(
        cls, wanted: bool | Callable[[Event], None], against: Yardstick | None = None
    ) -> Iterator[Callable[[Event], None]]:
        """Gives the listener that `wanted` asks for: a new Progress, nothing, or the caller's own callable."""
        if callable(wanted):
            yield wanted
        elif not wanted:
            yield lambda event: None
        else:
            progress = cls(sys.stderr, against)
            try:
                yield progress
            finally:
                progress.close()
