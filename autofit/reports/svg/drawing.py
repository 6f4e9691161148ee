"""Drawing: the text of one SVG picture, element by element, and how wide its letters are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from autofit.reports.markup import DataTable, Markup, asset, escaped, joined, shortened
from autofit.reports.report import Report

FONT, SMALL = 13.0, 12.0
"""Size of a label, and of the text at ticks and of notes, in units of the picture. `charts.css` sets the same."""
WIDTH = 860.0
"""Width of a picture; its text is readable at this many pixels."""
_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMW@%—=+<>×~→…")
_LONGEST = 400


def text_width(text: str, size: float) -> float:
    """Returns the width of a text in DejaVu Sans, which is wider than the usual sans-serif fonts of other systems."""
    return sum(_em(letter) for letter in text) * size


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.38
    if letter in _WIDE:
        return 0.96
    if ord(letter) > 0x2E80:  # CJK and emoji fill a square
        return 1.05
    return 0.72 if letter.isupper() else 0.63


def fitted(text: str, size: float, width: float) -> str:
    """Returns as much of `text` as fits `width`, with "…" where something is missing."""
    text = shortened(text, _LONGEST)
    if text_width(text, size) <= width:
        return text
    ends = accumulate(map(_em, text), initial=_em("…"))
    kept = sum(size * end <= width for end in ends) - 1
    return f"{text[: max(kept, 0)].rstrip(' ,.')}…"


def number(value: float) -> str:
    """Returns a coordinate with one decimal at most."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """Returns an element of SVG; children and attributes that are None are left out.

    Text that is not `Markup` is escaped. In the name of an attribute, "_" stands for "-", and one at the end is dropped
    (`class_`).
    """
    given = {key.removesuffix("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    texts = {key: number(value) if isinstance(value, float) else str(value) for key, value in given.items()}
    start = "".join([name, *(f' {key}="{escaped(text)}"' for key, text in texts.items())])
    inside = joined(children)
    return Markup(f"<{start}>{inside}</{name}>" if inside else f"<{start}/>")


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that a label, a mark or the area of a chart takes."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(slots=True)
class Drawing:
    """A picture. Its elements are drawn in the order in which they are added.

    Attributes:
        about: what it shows, for a screen reader.
        titles: whether a point carries its plan as a `<title>`, which browsers show without a script.
        note: sentences on this picture that follow the aid of its chart.
        table: the values that it shows; None if the table of all plans holds them.
        height: of the picture.
        parts: its elements.
    """

    about: str
    titles: bool = False
    note: str = ""
    table: DataTable | None = None
    height: float = 0.0
    parts: list[Markup] = field(default_factory=list)

    def add(self, name: str, *children: str | None, **attributes: str | float | None) -> None:
        """Draws an element."""
        self.parts.append(element(name, *children, **attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draws a line of a class of `charts.css`."""
        self.polyline([(x1, y1), (x2, y2)], kind)

    def polyline(self, points: list[tuple[float, float]], kind: str) -> None:
        """Draws a line through points."""
        self.add("path", class_=kind, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points))

    def rect(
        self, left: float, top: float, right: float, bottom: float, kind: str, radius: float | None = None
    ) -> None:
        """Draws a rectangle."""
        width, height = max(right - left, 0.0), max(bottom - top, 0.0)
        self.add("rect", class_=kind, x=left, y=top, width=width, height=height, rx=radius)

    def text(self, x: float, y: float, text: str, kind: str = "af-label", anchor: str = "") -> None:
        """Draws a text with its baseline at `y`; `anchor` is "middle", "end" or "" for its start."""
        self.add("text", text, class_=kind, x=x, y=y, text_anchor=anchor or None)

    def svg(self, alone: bool = False) -> Markup:
        """Returns the picture for a page that has the style sheet, or with it and a background to stand alone."""
        width, height, inside = number(WIDTH), number(self.height), joined(self.parts)
        if alone:
            style = element("style", Markup(asset("charts.css")))
            ground = element("rect", class_="af-ground", width=width, height=height)
            inside = joined([element("title", self.about), style, ground, inside])
        return element(
            "svg",
            inside,
            class_="af-chart",
            xmlns="http://www.w3.org/2000/svg" if alone else None,
            width=width if alone else None,
            height=height if alone else None,
            viewBox=f"0 0 {width} {height}",
            role="img" if alone else "group",
            aria_label=self.about,
        )


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of picture.

    Attributes:
        kind: name in `Fit.plot` and anchor in the page.
        heading: what it shows.
        aid: how to read it.
        missing: why a report may not have it, for the error of `Fit.plot`.
        draw: draws it, with titles or not (`Drawing.titles`); None for a report that does not have it.
    """

    kind: str
    heading: str
    aid: str
    missing: str
    draw: Callable[[Report, bool], Drawing | None]
