"""LiveLine: one line at the bottom of a terminal, drawn anew each second; what is finished scrolls above it."""

import os
import threading
from collections.abc import Callable
from typing import Never, TextIO

from tqdm import tqdm

from autofit.core.printable import columns

TICK_S = 1.0
_drawing = threading.RLock()
# A process that is forked while another thread draws would find the stream locked for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_drawing.acquire, after_in_parent=_drawing.release, after_in_child=_drawing.release)


class LiveLine:
    """Draws the line in a thread of its own, so that the time goes on while a probe runs; one object per search."""

    def __init__(self, stream: TextIO, text: Callable[[int], str]) -> None:
        """Begins to draw what `text` returns for a width."""
        self._stream, self._text = stream, text
        self._over = threading.Event()
        with _drawing:
            self._bar: tqdm[Never] = tqdm(file=stream, leave=False, bar_format="{desc}", dynamic_ncols=True)
        self._thread = threading.Thread(target=self._tick, name="autofit progress", daemon=True)
        self._thread.start()

    def scroll(self, lines: Callable[[int], list[str]]) -> None:
        """Leaves lines above the live one, which is drawn anew."""
        with _drawing:
            for line in lines(self._width()):
                tqdm.write(line, file=self._stream)
            self._draw()

    def close(self) -> None:
        """Takes the line off the terminal."""
        self._over.set()
        self._thread.join()
        with _drawing:
            self._bar.close()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            with _drawing:
                self._draw()

    def _draw(self) -> None:
        self._bar.set_description_str(self._text(self._width()))

    def _width(self) -> int:
        # The last column stays free: some terminals begin a new line when it is written.
        return max(columns(self._stream) - 1, 20)
