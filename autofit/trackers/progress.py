"""Progress: shows the events of a search as they happen, and tells its watchdog of them. Writes to stderr only."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TextIO

from tqdm import tqdm

from autofit.core.outcome import Status
from autofit.core.printable import one_line
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.request import Event, Listen, Request
from autofit.terminal import cells, columns, has_blocks, has_colour, is_terminal
from autofit.trackers.live_line import SearchState

CHOOSING = "choosing the next plan"
"""Name of the phase between two runs."""


def heartbeat(watch: Watchdog) -> Listen:
    """Returns a listener: each event of a search is a sign of life."""
    return lambda event: watch.beat(WAITING if event.kind == "busy" else CHOOSING)


def waiting(watch: Watchdog, listen: Listen) -> Callable[[str], None]:
    """Returns what passes a message about another tuner's lock on to a listener, as an event "busy"."""

    def say(text: str) -> None:
        watch.beat(WAITING)
        listen(Event("busy", text))

    return say


TICK_S = 1.0
"""Seconds between two drawings."""
_CLEAR_REST, _CLEAR_ROW, _UP = "\x1b[K", "\x1b[2K", "\x1b[A"
"""Codes for one row only: what clears a whole screen may move it to the terminal's history, as tmux does."""
_drawing = threading.RLock()
# A process that is forked while another thread draws would find the stream locked for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release)


class _Line(tqdm):  # type: ignore[type-arg]  # at run time it takes none
    """A tqdm bar that clears the rest of its row: an echoed ^C, or what was drawn on a wider terminal."""

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        """Returns what draws a text in place of the one before. tqdm's own pads with spaces, which may wrap."""

        def draw(text: str) -> None:
            file.write(f"\r{text}{_CLEAR_REST}")
            file.flush()

        return draw


class LiveLine:
    """Draws the line in its own thread, so that the time advances while a probe runs; one object per search.

    `text` returns the line for a width in cells.
    """

    def __init__(self, stream: TextIO, text: Callable[[int], str]) -> None:
        self._stream, self._text = stream, text
        self._over = threading.Event()
        self._drawn = 0  # cells of the line on the terminal
        with _drawing:
            self._bar = _Line(file=stream, leave=False, bar_format="{desc}", dynamic_ncols=True)
        self._thread = threading.Thread(target=self._tick, name="autofit progress", daemon=True)
        self._thread.start()

    def scroll(self, lines: Callable[[int], list[str]]) -> None:
        """Leaves lines above the live one. `lines` returns them for a width in cells."""
        with _drawing:
            self._unwrap()
            for line in lines(self._width()):
                tqdm.write(line, file=self._stream)
            self._draw()

    def close(self) -> None:
        """Takes the line off the terminal, and leaves the cursor at the start of its row."""
        self._over.set()
        self._thread.join()
        with _drawing:
            self._unwrap()
            self._bar.close()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with _drawing:
                self._draw()

    def _draw(self) -> None:
        self._unwrap()
        line = self._text(self._width())
        self._bar.set_description_str(line)
        self._drawn = cells(line)

    def _unwrap(self) -> None:
        """Clears every row of the line, which a terminal that became narrower has wrapped."""
        rows = (max(self._drawn, 1) - 1) // max(columns(self._stream), 1)
        if rows:
            self._stream.write(_CLEAR_ROW + (_UP + _CLEAR_ROW) * rows + "\r")
            self._drawn = 0

    def _width(self) -> int:
        # The last column stays free: some terminals begin a new line when it is written.
        return max(columns(self._stream) - 1, 20)


class Progress:
    """Shows events: finished trials above a live line on a terminal, plain lines elsewhere; one object per search.

    A plain line begins with "autofit: ". A finished trial is "trial NUMBER: PLAN: OUTCOME" and a proof
    "proof of PLAN: OUTCOME", where PLAN is the batch and what the plan changes, and OUTCOME is the throughput and the
    peak, or the status and its reason. Every other line is a stage of the search.
    """

    def __init__(self, stream: TextIO, state: SearchState) -> None:
        self._stream, self._state = stream, state
        self._state.colour, self._state.blocks = has_colour(stream), has_blocks(stream)
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


@contextmanager
def watched(wanted: bool | Listen, request: Request, watch: Watchdog) -> Iterator[Listen]:
    """Gives the listener that is wanted: a new Progress, nothing, or the caller's own callable.

    The watchdog of a search reports to it as well.
    """
    with ExitStack() as held:
        if callable(wanted):
            listen = wanted
        elif wanted:
            state = SearchState(watch.clock, request.time_s, lambda: watch.doing)
            listen = held.enter_context(closing(Progress(sys.stderr, state)))
        else:
            listen = _ignore
        held.enter_context(watch.telling(lambda text: listen(Event("waiting", text))))
        yield listen


def _ignore(event: Event) -> None: ...
