"""Markup: HTML and SVG as text that is escaped unless it was made here."""

import re
from collections.abc import Iterable

from autofit.core.printable import one_line, printable

LEAVES = frozenset({"circle", "line", "path", "rect"})
"""SVG elements that are written as `<circle/>` if they hold nothing."""
VOID = frozenset({"input", "link", "meta", "wbr"})
"""HTML elements that have no end tag."""
_SPECIAL = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_QUOTES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\n": " "})
_NOT_XML = re.compile("[\ufffe\uffff]")


class Markup(str):
    """Text that is HTML or SVG already. Any other `str` is escaped before it goes into a document."""

    __slots__ = ()


Child = Markup | str | None
Value = str | int | float | bool | None


def escaped(text: str) -> Markup:
    """Returns `text` as it stands between two tags, without control characters."""
    if isinstance(text, Markup):
        return text
    return Markup(_NOT_XML.sub("\ufffd", printable(text)).translate(_SPECIAL))


def element(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Returns an element of HTML or SVG.

    Args:
        name: of the element.
        children: what it holds, in order; text that is not `Markup` is escaped, None is left out.
        attributes: by name, in order. "_" stands for "-", and one at the end is dropped (`class_`). None and False are
            left out, and True is an attribute without a value.
    """
    start = f"{name}{''.join(_attribute(key, value) for key, value in attributes.items())}"
    inside = "".join(escaped(child) for child in children if child is not None)
    if not inside and name in LEAVES:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>" if name in VOID else f"<{start}>{inside}</{name}>")


def joined(parts: Iterable[Child], between: str = "") -> Markup:
    """Returns the parts one after the other, each escaped as `element` does."""
    return Markup(between.join(escaped(part) for part in parts if part is not None))


def number(value: float) -> str:
    """Returns a coordinate with one decimal at most."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def shortened(text: str, most: int) -> str:
    """Returns `text` on one line of at most `most` characters, with "…" at the end if something is missing."""
    flat = one_line(text[: 8 * most])
    return flat if len(flat) <= most and len(text) <= 8 * most else f"{flat[: most - 1].rstrip()}…"


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else _NOT_XML.sub("\ufffd", printable(str(value)))
    return f' {name}="{text.translate(_QUOTES)}"'
