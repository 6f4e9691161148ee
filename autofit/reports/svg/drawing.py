"""Drawing: the text of one SVG picture, element by element, and places for its letters."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import accumulate

from autofit.core.printable import one_line
from autofit.reports.markup import Child, DataTable, Markup, Value, element, joined, number, shortened
from autofit.reports.report import Report

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMW@%—=+<>×~→…")
_LONGEST = 400
_BREAKS = re.compile(r"(?<=[=_.])")


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
    room = width - text_width("…", size)
    for place, letter in enumerate(text):
        room -= _em(letter) * size
        if room < 0:
            text = text[:place]
            break
    return f"{text.rstrip(' ,.')}…"


def wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """Returns `text` as at most `most` lines that fit `width`; the last one is cut if needed.

    Lines end at a space or, in a word that is too long for a line, behind "=", "_" or ".".
    """
    lines = [""]
    words = [
        part
        for word in one_line(text[:_LONGEST]).split(" ")
        for part in (_BREAKS.split(f"{word} ") if text_width(word, size) > width else [f"{word} "])
        if part.strip()
    ]
    for place, word in enumerate(words):
        longer = f"{lines[-1]}{word}"
        if text_width(longer.rstrip(), size) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] = "".join([lines[-1], *words[place:]])
            break
    return [fitted(line.rstrip(), size, width) for line in lines]


def spread(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Returns positions near the wanted ones, in their order, for labels that do not overlap.

    Args:
        wanted: where the middle of each label should be.
        heights: of each label, with the space around it.
        low: the first position that is allowed.
        high: the last position that is allowed, if there is room for all labels.
    """
    groups = list[list[int]]()
    tops = list[float]()
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index]):
        group = [index]
        top = _settled(group, wanted, heights, low, high)
        while groups and tops[-1] + sum(heights[member] for member in groups[-1]) > top:
            tops.pop()
            group = groups.pop() + group
            top = _settled(group, wanted, heights, low, high)
        groups.append(group)
        tops.append(top)
    placed = list(wanted)
    for group, top in zip(groups, tops, strict=True):
        ends = accumulate(heights[member] for member in group)
        for member, end in zip(group, ends, strict=True):
            placed[member] = top + end - heights[member] / 2
    return placed


def _settled(group: Sequence[int], wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> float:
    """Returns the top of labels that stand one below the other, so that they are near where they should be."""
    ends = list(accumulate(heights[member] for member in group))
    tops = [wanted[member] + heights[member] / 2 - end for member, end in zip(group, ends, strict=True)]
    highest, lowest = low - heights[group[0]] / 2, high + heights[group[-1]] / 2 - ends[-1]
    return min(max(sum(tops) / len(tops), highest), max(lowest, highest))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that a label or a mark takes."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Returns whether the two rectangles overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )  # fmt: skip

    def inside(self, other: "Box") -> bool:
        """Returns whether this one lies in the other one."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )  # fmt: skip


def place_label(x: float, y: float, width: float, height: float, bounds: Box, taken: Sequence[Box]) -> Box:
    """Returns where a label of a point stands: beside, above or below it, clear of what is taken if that is possible.

    Args:
        x: of the point.
        y: of the point.
        width: of the label.
        height: of the label.
        bounds: the area that the label must not leave.
        taken: what other labels and marks take.
    """
    boxes = [
        Box(left, top, left + width, top + height)
        for off in (11.0, 22.0, 36.0, 54.0)
        for left, top in (
            (x + off, y - height / 2), (x - off - width, y - height / 2), (x - width / 2, y - off - height),
            (x - width / 2, y + off), (x + off, y - off - height), (x - off - width, y - off - height),
            (x + off, y + off), (x - off - width, y + off),
        )
    ]  # fmt: skip
    inside = [box for box in boxes if box.inside(bounds)] or [_moved(boxes[0], bounds)]
    return min(inside, key=lambda box: sum(box.overlaps(other) for other in taken))


def _moved(box: Box, bounds: Box) -> Box:
    left = max(min(box.left, bounds.right - (box.right - box.left)), bounds.left)
    top = max(min(box.top, bounds.bottom - (box.bottom - box.top)), bounds.top)
    return Box(left, top, left + box.right - box.left, top + box.bottom - box.top)


FONT = 13.0
"""Size of a label in units of the picture. `charts.css` sets the same."""
SMALL = 12.0
"""Size of the text at ticks and of notes. `charts.css` sets the same."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a picture is drawn for.

    Attributes:
        width: width of the picture; its text is readable at this many pixels.
        titles: whether a point carries its plan as a `<title>`, which browsers show without a script.
    """

    width: float = 860.0
    titles: bool = False

    @property
    def narrow(self) -> bool:
        """Whether the picture is for a telephone, with labels below the chart instead of beside it."""
        return self.width < 560


WIDE, NARROW = Format(860.0), Format(344.0)


@dataclass(slots=True)
class Drawing:
    """A picture.

    Attributes:
        format: what it is drawn for.
        about: what it shows, for a screen reader.
        height: of the picture; its width is that of the format.
        parts: its elements, in the order in which they are drawn.
    """

    format: Format
    about: str
    height: float = 0.0
    parts: list[Markup] = field(default_factory=list)

    def add(self, name: str, *children: Child, **attributes: Value) -> None:
        """Draws an element."""
        self.parts.append(element(name, *children, **attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draws a line of a class of `charts.css`."""
        self.add("path", class_=kind, d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}")

    def polyline(self, points: list[tuple[float, float]], kind: str) -> None:
        """Draws a line through points."""
        self.add("path", class_=kind, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points))

    def rect(self, left: float, top: float, right: float, bottom: float, kind: str, radius: float = 0) -> None:
        """Draws a rectangle."""
        self.add(
            "rect",
            class_=kind,
            x=left,
            y=top,
            width=max(right - left, 0.0),
            height=max(bottom - top, 0.0),
            rx=radius or None,
        )

    def text(self, x: float, y: float, text: str, kind: str = "af-label", anchor: str = "") -> None:
        """Draws a text with its baseline at `y`; `anchor` is "middle", "end" or "" for its start."""
        self.add("text", text, class_=kind, x=x, y=y, text_anchor=anchor or None)

    def svg(self, alone: bool = False) -> Markup:
        """Returns the picture for a page that has the style sheet, or with it and a background to stand alone."""
        width, height, inside = number(self.format.width), number(self.height), joined(self.parts)
        if alone:
            style = element("style", Markup(style_sheet()))
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


@cache
def style_sheet() -> str:
    """Returns the style sheet of the pictures."""
    return files("autofit.reports").joinpath("assets", "charts.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of picture.

    Attributes:
        kind: name in `Fit.plot` and anchor in the page.
        heading: what it shows.
        aid: one sentence on how to read it.
        missing: why a report may not have it, for the error of `Fit.plot`.
        available: whether a report has it.
        draw: draws it; only for a report that has it.
        table: its values; None if the table of all plans holds them.
        note: sentences on this report's chart that follow the aid; "" for none. Only for a report that has the chart.
    """

    kind: str
    heading: str
    aid: str
    missing: str
    available: Callable[[Report], bool]
    draw: Callable[[Report, Format], Drawing]
    table: Callable[[Report], DataTable | None]
    note: Callable[[Report], str] = lambda report: ""
