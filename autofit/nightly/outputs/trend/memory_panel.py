"""The panel of memory: the peak of each night, the limit of its noise, and the budget."""

from collections.abc import Iterator

from autofit.core.units import format_bytes
from autofit.nightly.outputs.trend.bands import limit_path, lines, path, simpler
from autofit.nightly.outputs.trend.jobs import Trend
from autofit.nightly.outputs.trend.nights import STYLES, mark
from autofit.nightly.outputs.trend.panel import Panel
from autofit.nightly.records import VerdictKind
from autofit.reports.svg.axes import Ticks, byte_ticks, span
from autofit.reports.svg.drawing import Drawing

_FAR = 1.6
"""A budget above this multiple of the largest peak is named, not drawn: the peaks would be a flat line."""


def axis(trend: Trend) -> tuple[tuple[float, float], Ticks]:
    """Returns the ends and the ticks of the axis. It shows all peaks and limits, and the budget if it is close."""
    values = [float(entry.peak_bytes) for entry in trend.entries if entry.peak_bytes is not None]
    limits = [entry.last.verdict.high_bytes for entry in trend.entries]
    values += [float(limit) for limit in limits if limit is not None]
    budget = trend.last.budget_bytes
    values += [float(budget)] if budget and budget <= _FAR * max(values) else []
    low, high = span(values)
    return (low, high), byte_ticks(low, high, 3)


def draw(drawing: Drawing, trend: Trend, panel: Panel) -> None:
    """Draws the panel."""
    entries = trend.entries
    drawing.text(0, panel.area.top - 12, "peak memory", "af-strong")
    if trend.last.budget_bytes:
        _budget(drawing, panel, trend.last.budget_bytes)
    if limit := limit_path(entries, panel.x, panel.y):
        drawing.add("path", class_="af-peak", d=limit)
    runs = list(lines(entries, lambda entry: entry.peak_bytes))
    for points in runs:
        drawing.add("path", class_="tr-memory", d=path(simpler([panel.at(entry, value) for entry, value in points])))
    if single := "".join(_single(trend, panel, {id(entry) for points in runs for entry, _ in points})):
        drawing.add("path", class_="tr-memory tr-single", d=single)
    for entry in entries:
        if entry.memory_regressed and entry.peak_bytes is not None:
            drawing.add("path", class_=STYLES[entry.kind], d=mark(entry.kind, *panel.at(entry, entry.peak_bytes)))


def _single(trend: Trend, panel: Panel, drawn: set[int]) -> Iterator[str]:
    """Yields a dot for each night whose neighbours have no peak, so that no line goes through it."""
    for entry in trend.entries:
        if entry.peak_bytes is not None and id(entry) not in drawn:
            yield mark(VerdictKind.STEADY, *panel.at(entry, entry.peak_bytes))


def _budget(drawing: Drawing, panel: Panel, budget_bytes: int) -> None:
    """Draws the budget as a line with its name, or names it if it is beyond the axis."""
    name, area = f"budget {format_bytes(budget_bytes)}", panel.area
    if budget_bytes <= panel.y.high:
        drawing.line(area.left, panel.y(budget_bytes), area.right, panel.y(budget_bytes), "af-budget")
        drawing.text(area.right, area.top - 12, name, "af-bad", "end")
    else:
        drawing.text(area.right, area.top - 12, f"{name}, beyond this axis", "af-note", "end")
