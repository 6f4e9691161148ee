"""Terminal: what a stream can show, colours, and texts that fit a width."""

import os
import re
import shutil
import unicodedata
from contextlib import suppress
from typing import TextIO

_PATH = re.compile(r"[/\\]")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLOURS = {"bar": "36", "good": "32", "bad": "31", "faint": "2", "title": "1"}


def is_terminal(stream: TextIO) -> bool:
    """Returns whether a stream writes to a terminal that can move its cursor; `TERM=dumb` says that it cannot."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Returns whether colours may be used on a stream: on a terminal, unless `NO_COLOR` is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def has_blocks(stream: TextIO) -> bool:
    """Returns whether a stream can show block characters, by its encoding."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def paint(text: str, colour: str) -> str:
    """Returns `text` in a colour: "bar", "good", "bad", "faint" or "title"; unchanged if either is empty."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if text and colour else text


def bar(share: float, cells: int, blocks: bool, rest: str = " ") -> str:
    """Returns a bar of `cells` characters of which `share` is filled, and `rest` follows. Any share above 0 is visible.

    With `blocks`, it is of block characters, in eighths.
    """
    share, parts = min(max(share, 0.0), 1.0), 8 if blocks else 1
    whole, eighth = divmod(max(round(share * cells * parts), 1) if share > 0 else 0, parts)
    filled = "█" * whole + _EIGHTHS[eighth].strip() if blocks else "#" * whole
    return filled + rest * (cells - len(filled))


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Returns the words of `text` as lines of at most `width` cells.

    A word that is longer than a line is split, behind "=", "_", "." or "," if there is one. A path or an address is not
    split, since it is copied: it has a line of its own.

    Args:
        text: the text; runs of white space become one space.
        width: cells of a line.
        first: what the first line begins with.
        rest: what the other lines begin with.
    """
    lines, line = list[str](), first
    empty = True
    room = width - max(cells(first), cells(rest))
    for word in text.split():
        whole = cells(word) <= width - cells(line if empty else rest)
        for number, piece in enumerate([word] if whole else _pieces(word, room)):
            if not empty and (number or cells(line) + 1 + cells(piece) > width):
                lines.append(line)
                line, empty = rest, True
            line += piece if empty else f" {piece}"
            empty = False
    return [*lines, line.rstrip()]


def _pieces(word: str, room: int) -> list[str]:
    """Returns a word in pieces of at most `room` cells."""
    if room < 2 or cells(word) <= room or _PATH.search(word):
        return [word]
    found, start, used = list[str](), 0, 0
    for number, letter in enumerate(word):
        if used + _cell(letter) > room:
            end = max(word.rfind(mark, start, number) for mark in "=_.,") + 1 or number
            found.append(word[start:end])
            start, used = end, cells(word[end:number])
        used += _cell(letter)
    return [*found, word[start:]]


def columns(stream: TextIO) -> int:
    """Returns the width of the terminal that a stream writes to, of which COLUMNS has the say; else 80."""
    if "COLUMNS" not in os.environ:
        with suppress(OSError, ValueError):  # a stream without a terminal, or without a descriptor
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def cells(text: str) -> int:
    """Returns how many cells of a terminal `text` takes: two for a wide character, none for a combining one."""
    return sum(map(_cell, text))


def cut(text: str, width: int) -> str:
    """Returns the beginning of `text` that fits `width` cells of a terminal, with ".." where something is missing.

    The text is cut at a space if there is one in the second half of the line.
    """
    used = kept = 0
    for number, letter in enumerate(text, 1):
        used += _cell(letter)
        if used <= width - 2:
            kept = number
        if used > width:
            break
    else:
        return text
    if (space := text.rfind(" ", 0, kept + 1)) > kept // 2:
        kept = len(text[:space].rstrip())
    return f"{text[:kept]}.."[: max(width, 0)]


def cut_middle(text: str, limit: int) -> str:
    """Returns `text`, shortened to `limit` characters by replacing its middle with "..."."""
    if len(text) <= limit:
        return text
    head = (limit - 5) // 2
    return f"{text[:head]} ... {text[head + 5 - limit :]}"


def _cell(letter: str) -> int:
    return 2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter)
