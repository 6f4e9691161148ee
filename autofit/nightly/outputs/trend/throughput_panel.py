"""The panel of throughput: its noise band, the nights, their verdicts, and changes of the plan."""

from collections.abc import Iterator, Sequence

from autofit.nightly.outputs.trend.bands import band_paths, lines, path
from autofit.nightly.outputs.trend.entries import TrendEntry
from autofit.nightly.outputs.trend.nights import STYLES, mark
from autofit.nightly.outputs.trend.panel import Panel, borders
from autofit.nightly.records import VerdictKind
from autofit.reports.markup import element, joined, number
from autofit.reports.svg.axes import Ticks, rate_ticks, span
from autofit.reports.svg.drawing import Drawing

LANE = 20.0
"""Height of the row below the panel for nights in which the plan did not run."""


def axis(entries: Sequence[TrendEntry]) -> tuple[tuple[float, float], Ticks]:
    """Returns the ends and the ticks of the axis. It shows all nights and their noise bands."""
    values = [rate for entry in entries for rate in entry.rates_per_s]
    values += [end for entry in entries for end in entry.band or ()]
    low, high = span(values)
    return (low, high), rate_ticks(low, high, 5)


def draw(drawing: Drawing, entries: Sequence[TrendEntry], panel: Panel, lane: float) -> None:
    """Draws the panel; `lane` is the height of the row of nights without a throughput, or 0."""
    for edge in band_paths(entries, panel.x, panel.y):
        drawing.add("path", class_="tr-band", d=edge)
    if ranges := "".join(_ranges(entries, panel)):
        drawing.add("path", class_="tr-range", d=ranges)
    for points in lines(entries, lambda entry: entry.rate_per_s):
        drawing.add("path", class_="tr-line", d=path([panel.at(entry, value) for entry, value in points]))
    if lane:
        drawing.text(panel.area.left - 8, panel.area.bottom + lane / 2 + 4, "none", "af-note", "end")
    for x, accepted in _plans(entries, panel):
        drawing.add("path", class_=f"tr-plan{'' if accepted else ' tr-proposed'}", d=_diamond(x, panel.area.top))


def nights(drawing: Drawing, entries: Sequence[TrendEntry], panel: Panel, lane: float) -> None:
    """Draws one mark for each entry, oldest first; by its place the script of the page knows which one it is.

    A regression of memory alone has its mark in the panel of memory, and is a dot here.
    """
    marks = []
    for entry in entries:
        y = panel.area.bottom + lane / 2 if entry.rate_per_s is None else panel.y(entry.rate_per_s)
        plain = entry.memory_regressed and not entry.slower
        kind = VerdictKind.STEADY if plain else entry.kind
        style = None if kind is VerdictKind.STEADY else STYLES[kind]
        marks.append(element("path", class_=style, d=mark(kind, panel.when(entry), y)))
    drawing.add("g", joined(marks), class_="tr-nights")


def _ranges(entries: Sequence[TrendEntry], panel: Panel) -> Iterator[str]:
    """Yields a line from the slowest to the fastest night of each entry that holds several."""
    for entry in entries:
        if len(entry.rates_per_s) > 1:
            x, low = panel.at(entry, min(entry.rates_per_s))
            yield f"M{number(x)} {low:.0f}V{panel.y(max(entry.rates_per_s)):.0f}"


def _plans(entries: Sequence[TrendEntry], panel: Panel) -> Iterator[tuple[float, bool]]:
    """Yields where the accepted plan changed (True) and where another one was proposed (False)."""
    for entry, at in borders(entries, panel):
        if any(change.startswith("plan: ") for change in entry.changes):
            yield at, True
    for entry in entries:
        if entry.last.proposed is not None and (not entry.last.replaced or entry is entries[-1]):
            yield panel.when(entry), entry.last.replaced


def _diamond(x: float, y: float) -> str:
    return f"M{number(x)} {number(y - 6)}l6 6l-6 6l-6-6z"
