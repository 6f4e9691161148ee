"""A scatter chart in plain text, for a code block."""

from collections.abc import Sequence
from typing import NamedTuple

from autofit.core.units import format_bytes, short_number

WIDTH, HEIGHT = 64, 16
"""Characters and lines of the area with the points."""
_FAR_RATIO = 3
"""A budget above this multiple of the largest peak is named, not drawn: the points would crowd at the left edge."""
_MARGIN = 1.05
_LABEL = 10


class ChartPoint(NamedTuple):
    """A point of a chart.

    Attributes:
        memory_bytes: horizontal position.
        rate_per_s: vertical position.
        mark: one character. Of points in one place, the mark that comes first in `ORDER` is shown.
    """

    memory_bytes: int
    rate_per_s: float
    mark: str


ORDER = "RB*o"
"""Marks: the recommended plan, the baseline, other plans on the Pareto front, other plans."""


def scatter(points: Sequence[ChartPoint], budget_bytes: int, unit: str) -> str:
    """Returns a chart of throughput against peak memory, with the budget as a vertical line; "" without points.

    Args:
        points: what is drawn.
        budget_bytes: memory budget.
        unit: what throughputs count.
    """
    if not points:
        return ""
    most_bytes, most_rate = max(p.memory_bytes for p in points), max(p.rate_per_s for p in points)
    far = budget_bytes > _FAR_RATIO * most_bytes
    width_bytes = _MARGIN * (most_bytes if far else max(most_bytes, budget_bytes))
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    if not far:
        for line in cells:
            line[_place(budget_bytes / width_bytes, WIDTH)] = "|"
    for point in sorted(points, key=lambda each: -ORDER.index(each.mark)):
        row = HEIGHT - 1 - _place(point.rate_per_s / (_MARGIN * most_rate), HEIGHT)
        cells[row][_place(point.memory_bytes / width_bytes, WIDTH)] = point.mark
    labels = {0: short_number(_MARGIN * most_rate), HEIGHT - 1: "0"}
    drawn = [f"{labels.get(number, ''):>{_LABEL}} |{''.join(line)}".rstrip() for number, line in enumerate(cells)]
    right = format_bytes(round(width_bytes))
    axis = f"{'':{_LABEL}} +{'-' * WIDTH}"
    under = f"{'':{_LABEL}}  0{'peak memory':^{WIDTH - len(right) - 1}}{right}"
    budget = f"budget {format_bytes(budget_bytes)}, {'outside the chart' if far else 'shown as |'}"
    legend = f"R recommended  B baseline  * Pareto front  o other plans; {budget}"
    return "\n".join([f"{unit}/s", *drawn, axis, under, "", legend])


def _place(share: float, cells: int) -> int:
    return min(max(int(share * cells), 0), cells - 1)
