"""Panel: one part of a chart over nights; and what the panels share: the axis of time and the segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autofit.nightly.outputs.trend.entries import TrendEntry
from autofit.nightly.outputs.trend.time_scale import TimeScale
from autofit.reports.markup import number, shortened
from autofit.reports.svg.axes import AxisScale, Ticks
from autofit.reports.svg.drawing import SMALL, Box, Drawing, fitted, text_width

STRIP = 22.0
"""Height of the names of segments above the first panel."""
_LEAST_NAME = 8
"""If fewer letters of its name fit, a segment has only its number; the list below the chart has the name."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    Attributes:
        area: where it is.
        x: scale of time, in seconds since 1970.
        y: scale of its values.
    """

    area: Box
    x: TimeScale
    y: AxisScale

    def at(self, entry: TrendEntry, value: float) -> tuple[float, float]:
        """Returns where a value of an entry is."""
        return self.when(entry), self.y(value)

    def when(self, entry: TrendEntry) -> float:
        """Returns the horizontal place of an entry."""
        return self.x(entry.at.timestamp())

    def grid(self, drawing: Drawing, ticks: Ticks) -> None:
        """Draws the lines of an axis of values with their labels."""
        across = "".join(
            f"M{number(self.area.left)} {number(self.y(value))}H{number(self.area.right)}" for value, _ in ticks
        )
        drawing.add("path", class_="af-grid", d=across)
        for value, label in ticks:
            drawing.text(self.area.left - 8, self.y(value) + 4, label, "af-note", "end")


def dates(drawing: Drawing, x: TimeScale, bottom: float) -> None:
    """Draws the axis of time."""
    ticks = x.ticks(6 if drawing.format.narrow else 14)
    marks = "".join(f"M{number(x(value))} {number(bottom)}v5" for value, _ in ticks)
    drawing.add("path", class_="af-axis", d=f"M{number(x.start)} {number(bottom)}H{number(x.end)}{marks}")
    free = 0.0
    for value, label in ticks:
        half = text_width(label, SMALL) / 2
        middle = min(max(x(value), half), drawing.format.width - half)
        if middle - half >= free:
            drawing.text(middle, bottom + 19, label, "af-note", "middle")
            free = middle + half + 8


def segments(drawing: Drawing, entries: Sequence[TrendEntry], panel: Panel, bottom: float) -> None:
    """Draws where each segment begins, and above the panel its number with what began it, where there is room."""
    found = list(borders(entries, panel))
    top = panel.area.top - STRIP
    starts = [panel.area.left, *(at for _, at in found)]
    names = [str(entries[0].segment) if found else "", *(f"{entry.segment} {began(entry)}" for entry, _ in found)]
    for left, right, name in zip(starts, [*starts[1:], panel.area.right], names, strict=True):
        first = left == panel.area.left
        if not first:
            drawing.line(left, top, left, bottom, "tr-border")
        shown = fitted(name, SMALL, right - left - 10)
        shown = shown if len(shown) > _LEAST_NAME or shown == name else name.split(" ")[0]
        if shown and right - left > text_width(shown, SMALL) + 8:
            drawing.text(left + (0 if first else 5), top + 12, shown, "af-note")


def borders(entries: Sequence[TrendEntry], panel: Panel) -> Iterator[tuple[TrendEntry, float]]:
    """Yields the first entry of each segment but the first, and where it begins: halfway from the entry before."""
    for before, entry in pairwise(entries):
        if entry.changes:
            yield entry, (panel.when(before) + panel.when(entry)) / 2


def began(entry: TrendEntry) -> str:
    """Returns in a few words what began a segment."""
    shown = []
    for change in entry.changes:
        name, _, values = change.partition(": ")
        value = values.partition(", was ")[0]
        shown.append(f"new {name}" if name in ("plan", "workload") else f"{name} {value}")
    return shortened(", ".join(shown), 80)
