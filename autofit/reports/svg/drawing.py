"""Drawing: the text of one SVG picture, element by element."""

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from autofit.reports.markup import Child, Markup, Value, element, joined, number

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
    return files("autofit.reports.svg").joinpath("charts.css").read_text(encoding="utf-8")
