"""Markup: text that is escaped before it goes into HTML or SVG unless it was made here, and how long texts are cut."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autofit.core.printable import one_line, printable

LABEL, REASON, CODE = 220, 320, 4000
"""Number of characters after which a plan, a reason and a piece of code are cut."""
_LONG_WORD = 20
"""Number of characters from which a word may be wider than a line of the headline on a telephone."""
_BREAKS = re.compile(r"(?<=[=_])")
_NOT_XML = re.compile("[\ufffe\uffff]")


@cache
def asset(name: str) -> str:
    """Returns a style sheet, script or template of this package."""
    return files("autofit.reports").joinpath("assets", name).read_text(encoding="utf-8")


class Markup(str):
    """Text that is HTML or SVG already. Any other `str` is escaped before it goes into a document."""

    __slots__ = ()

    def __html__(self) -> str:
        """Returns the text as it is, for the templates."""
        return self


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table of texts. The first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def escaped(text: str) -> Markup:
    """Returns `text` as it stands between two tags or in an attribute, without control characters."""
    return text if isinstance(text, Markup) else Markup(html.escape(printed(text)))


def printed(value: object) -> str:
    """Returns a value as text without control characters and without those that XML has not."""
    return _NOT_XML.sub("\ufffd", printable(str(value)))


def joined(parts: Iterable[str | None], between: str = "") -> Markup:
    """Returns the parts one after the other, each escaped unless it is `Markup`; None is left out."""
    return Markup(between.join(escaped(part) for part in parts if part is not None))


def shortened(text: str, most: int) -> str:
    """Returns `text` on one line of at most `most` characters, with "…" at the end if something is missing."""
    flat = one_line(text[: 8 * most])
    return flat if len(flat) <= most and len(text) <= 8 * most else f"{flat[: most - 1].rstrip()}…"


def breakable(text: str) -> Markup:
    """Returns a text whose long words may break behind "=" or "_" rather than anywhere."""
    words = (joined(_BREAKS.split(word), "<wbr>") if len(word) > _LONG_WORD else word for word in text.split(" "))
    return joined(words, " ")


def code_text(text: str) -> str:
    """Returns a piece of code with its lines and their indentation, cut if it is too long to be code."""
    lines = (" " * (len(line) - len(line.lstrip(" "))) + one_line(line) for line in text[: 2 * CODE].splitlines())
    found = "\n".join(lines).strip("\n")
    return found if len(found) <= CODE else f"{found[:CODE]}…"
