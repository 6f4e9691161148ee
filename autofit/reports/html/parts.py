"""Parts of a page that several sections use: sections, tables, lists of facts, and text that is cut."""

import re
from collections.abc import Sequence

from autofit.core.printable import one_line
from autofit.reports.markup import Child, Markup, element, joined, shortened
from autofit.reports.svg.chart import DataTable

LABEL, REASON, CODE = 220, 320, 4000
"""Number of characters after which a plan, a reason and a piece of code are cut."""

_LONG_WORD = 20
"""Number of characters from which a word may be wider than a line of the headline on a telephone."""
_BREAKS = re.compile(r"(?<=[=_])")

Facts = Sequence[tuple[str, Child]]


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
