"""LiveLine: one line at the bottom of a terminal, redrawn every second; finished trials scroll above it."""

import os
import threading
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from autofit.terminal import cells, columns

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

    Args:
        stream: the terminal.
        text: returns the line for a width in cells.
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
