"""Progress: shows the events of a search as they happen. Writes to stderr only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from autofit.core.outcome import Status
from autofit.core.printable import one_line
from autofit.search.event import Event
from autofit.terminal import has_blocks, has_colour, is_terminal
from autofit.trackers.live import LiveLine
from autofit.trackers.search_state import SearchState
from autofit.trackers.yardstick import Yardstick


class Progress:
    """Shows events: finished trials above a live line on a terminal, plain lines elsewhere; one object per search.

    A plain line begins with "autofit: ". A finished trial is "trial NUMBER: PLAN: OUTCOME" and a proof
    "proof of PLAN: OUTCOME", where PLAN is the batch and what the plan changes, and OUTCOME is the throughput and the
    peak, or the status and its reason. Every other line is a stage of the search.

    Args:
        stream: where to write.
        against: what progress is compared with.
    """

    def __init__(self, stream: TextIO, against: Yardstick | None = None) -> None:
        self._stream = stream
        self._state = SearchState(against or Yardstick(), has_colour(stream), has_blocks(stream))
        self._live = LiveLine(stream, self._state.live) if is_terminal(stream) else None

    def __call__(self, event: Event) -> None:
        """Shows one event. The result is for the caller to print."""
        if event.kind == "result":
            return
        if self._live is not None:
            self._live.scroll(self._state.tell(event))
        elif text := self._plain(event):
            # Reasons come from the user's code.
            print(f"autofit: {one_line(text)}", file=self._stream, flush=True)

    def close(self) -> None:
        """Takes the live line off the terminal."""
        if self._live is not None:
            self._live.close()

    def _plain(self, event: Event) -> str:
        """Returns the line of an event, or "" for one that is not shown."""
        if event.trial is None:
            return event.text if event.kind in ("stage", "waiting", "busy") else ""
        if event.trial.outcome.status is Status.SKIPPED:
            return ""
        name = "proof of " if event.kind == "proof" else f"trial {event.done}: "
        return f"{name}{event.text}"

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
