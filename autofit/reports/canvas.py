"""Canvas: bars, colours and lines for a terminal, as far as it can show them."""

from dataclasses import dataclass
from typing import Self, TextIO

from autofit.terminal import columns, has_blocks, has_colour, paint

LEAST, WIDTH, MOST = 40, 100, 120
"""Characters per line: minimum, default without a terminal, and maximum, since longer lines are hard to read."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Canvas:
    """What can be drawn on.

    Attributes:
        width: characters of a line.
        blocks: whether block characters can be shown; else plain ASCII.
        colour: whether colours may be used.
    """

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
        share = min(max(share, 0.0), 1.0)
        if not self.blocks:
            text = "#" * (max(round(share * cells), 1) if share > 0 else 0)
        else:
            whole, eighth = divmod(max(round(share * cells * 8), 1) if share > 0 else 0, 8)
            text = "█" * whole + (_EIGHTHS[eighth] if eighth else "")
        return self.paint(text, "bar") + " " * (cells - len(text))

    def paint(self, text: str, colour: str) -> str:
        """Returns `text` in a colour, see `autofit.terminal.paint`."""
        return paint(text, colour) if self.colour else text
