"""Columns: a table as lines of text that fit a width. The first column wraps; without enough room, rows are stacked."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from autofit.terminal import cells, wrapped

_GAP, _INDENT = 2, 2
_LEAST_FIRST = 26
"""Minimum width of the first column in cells. Rows are stacked before it becomes narrower."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a title, and a text for each row, right-aligned or not.

    A text continues on the next line after `most` cells; 0 keeps it on one line.
    """

    title: str
    texts: Sequence[str]
    right: bool = False
    most: int = 0

    @property
    def size(self) -> int:
        """Cells of its widest text."""
        lines = [line for text in self.texts for line in self.lines(text)]
        return max(map(cells, (self.title, *lines)))

    def lines(self, text: str) -> list[str]:
        """Returns the lines of one of its texts."""
        return wrapped(text, self.most) if self.most else [text]


def table(columns: Sequence[Column], width: int) -> list[str]:
    """Returns the head of a table and its rows; a row with a text that is too long takes several lines.

    A column without any text is left out. If the columns do not fit beside the first one, its texts stand above all
    others. The rows are indented; the head is not.
    """
    first, *others = columns
    shown = [column for column in others if any(column.texts)]
    room = width - _INDENT - sum(_GAP + column.size for column in shown)
    if shown and room < min(first.size, _LEAST_FIRST):
        return _stacked(first, shown, width)
    size = min(max(cells(first.title) - _INDENT, *map(cells, first.texts), 0), room)
    sized = [(column, column.size) for column in shown]
    lines = [_line(first.title, size + _INDENT, [column.title for column in shown], sized)]
    for number, text in enumerate(first.texts):
        others_lines = [column.lines(column.texts[number]) for column in shown]
        for begun, *texts in zip_longest(wrapped(text, size, "", "  "), *others_lines, fillvalue=""):
            lines.append(" " * _INDENT + _line(begun, size, texts, sized))
    return [line.rstrip() for line in lines]


def _stacked(first: Column, others: Sequence[Column], width: int) -> list[str]:
    """Returns each row as its first text, and below it the others, each behind its title."""
    lines = [first.title]
    for number, text in enumerate(first.texts):
        lines += wrapped(text, width, " " * _INDENT, " " * (_INDENT + 2))
        found = ", ".join(f"{c.title} {c.texts[number]}".strip() for c in others if c.texts[number])
        lines += wrapped(found, width, " " * (_INDENT + 2), " " * (_INDENT + 2)) if found else []
    return lines


def _line(begun: str, size: int, texts: Sequence[str], columns: Sequence[tuple[Column, int]]) -> str:
    line = begun + " " * (size - cells(begun))
    for text, (column, column_size) in zip(texts, columns, strict=True):
        pad = " " * (column_size - cells(text))
        line += " " * _GAP + (pad + text if column.right else text + pad)
    return line
