"""Canvas: bars, colours and lines for a terminal, as far as it can show them."""

from dataclasses import dataclass
from typing import Self, TextIO

from autofit.terminal import bar, columns, has_blocks, has_colour, paint

LEAST, WIDTH, MOST = 40, 100, 120
"""Characters per line: minimum, default without a terminal, and maximum, since longer lines are hard to read."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """What can be drawn on: characters of a line, and whether block characters, or else plain ASCII, and colours."""

    width: int = WIDTH
    blocks: bool = False
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Self:
        """Returns what can be drawn on a stream: as wide as its terminal, and coloured unless NO_COLOR is set."""
        width = columns(stream) if stream.isatty() else WIDTH
        return cls(width=min(max(width, LEAST), MOST), blocks=has_blocks(stream), colour=has_colour(stream))

    def bar(self, share: float, cells: int) -> str:
        """Returns a bar that fills `share` of `cells` characters, padded to `cells`. Any share above 0 is visible."""
        text = bar(share, cells, self.blocks).rstrip(" ")
        return self.paint(text, "bar") + " " * (cells - len(text))

    def paint(self, text: str, colour: str) -> str:
        """Returns `text` in a colour, see `autofit.terminal.paint`."""
        return paint(text, colour) if self.colour else text
