"""Markup: HTML and SVG as text that is escaped unless it was made here, and the parts of several pages."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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

    def __html__(self) -> str:
        """Returns the text as it is, for the templates."""
        return self


Child = Markup | str | None
Value = str | int | float | bool | None


def escaped(text: str) -> Markup:
    """Returns `text` as it stands between two tags, without control characters."""
    if isinstance(text, Markup):
        return text
    return Markup(printed(text).translate(_SPECIAL))


def printed(value: object) -> str:
    """Returns a value as text without control characters and without those that XML has not."""
    return _NOT_XML.sub("\ufffd", printable(str(value)))


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
    text = number(value) if isinstance(value, float) else printed(value)
    return f' {name}="{text.translate(_QUOTES)}"'


LABEL, REASON, CODE = 220, 320, 4000
"""Number of characters after which a plan, a reason and a piece of code are cut."""

_LONG_WORD = 20
"""Number of characters from which a word may be wider than a line of the headline on a telephone."""
_BREAKS = re.compile(r"(?<=[=_])")

Facts = Sequence[tuple[str, Child]]


@dataclass(frozen=True, slots=True)
class DataTable:
    """The values of a chart, for those who read them or hear them.

    Attributes:
        head: names of the columns. The first column names the row.
        rows: as texts.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def section(anchor: str, heading: str, *children: Child) -> Markup:
    """Returns a section of the page with its heading."""
    title = element("h2", heading, id=f"{anchor}-heading")
    return element("section", title, *children, id=anchor, aria_labelledby=f"{anchor}-heading")


def code_text(text: str) -> str:
    """Returns a piece of code with its lines, cut if it is too long to be code that a person runs."""
    lines = [_flat(line) for line in text[: 2 * CODE].splitlines()]
    found = "\n".join(lines).strip("\n")
    return found if len(found) <= CODE else f"{found[:CODE]}…"


def _flat(line: str) -> str:
    """Returns a line of code with its indentation."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * indent + one_line(line)


def breakable(text: str) -> Markup:
    """Returns a text whose long words may break behind "=" or "_" rather than anywhere."""
    words = (
        joined(_BREAKS.split(word), element("wbr")) if len(word) > _LONG_WORD else word for word in text.split(" ")
    )
    return joined(words, " ")


def data_table(table: DataTable, caption: str) -> Markup:
    """Returns a small table in a region that can be scrolled."""
    head = element("tr", *(element("th", name, scope="col") for name in table.head))
    rows = joined(_row(row) for row in table.rows)
    inside = [element("caption", caption), element("thead", head), element("tbody", rows)]
    return scrolled(element("table", *inside), caption)


def scrolled(table: Markup, name: str, class_: str = "scroll") -> Markup:
    """Returns a table in a region of its own, which the keyboard can scroll where the page is too narrow."""
    return element("div", table, class_=class_, tabindex=0, role="region", aria_label=name)


def _row(row: tuple[str, ...]) -> Markup:
    first = element("th", shortened(row[0], LABEL) if row[0] else "", scope="row")
    return element("tr", first, *(element("td", shortened(text, REASON)) for text in row[1:]))


def tile(name: str, value: str, note: str, kind: str = "") -> Markup:
    """Returns a key figure; its kind is "good", "bad" or ""."""
    inside = [
        element("div", name, class_="tile-name"),
        element("div", value, class_="tile-value"),
        element("div", note, class_="tile-note"),
    ]
    return element("div", *inside, class_=f"tile {kind}".rstrip())


def facts(entries: Facts) -> Markup:
    """Returns names with their values."""
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in entries)
    return element("dl", joined(pairs), class_="facts")


def bullets(items: Sequence[Child], class_: str | None = None) -> Markup:
    """Returns a list."""
    return element("ul", joined(element("li", item) for item in items), class_=class_)


def code_block(name: str, code: str) -> Markup:
    """Returns a piece of code with a button that copies it."""
    label = element("span", name, class_="code-name")
    button = element("button", "Copy", type="button", class_="copy", hidden=True, aria_label=f"Copy: {name}")
    block = element("pre", element("code", code_text(code)), tabindex=0, role="region", aria_label=name)
    return element("div", element("div", label, button, class_="code-head"), block, class_="code")
