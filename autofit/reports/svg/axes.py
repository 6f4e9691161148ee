"""Axes and marks: scales with round ticks, keys, and the points of plans, the same in all charts."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.units import format_bytes, short_number
from autofit.reports.markup import Markup, shortened
from autofit.reports.report import BATCH_ONLY, PlanRow, Report
from autofit.reports.svg.drawing import FONT, SMALL, WIDTH, Box, Drawing, element, fitted, number, text_width

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_STEPS = (1, 2, 2.5, 5, 10)
_FROM_ZERO = 0.4
"""An axis starts at zero if its smallest value is below this share of the largest one."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """A mapping from values, `low` to `high`, to the coordinates `start` to `end`.

    With `log2`, equal ratios are equally long, not equal differences.
    """

    low: float
    high: float
    start: float
    end: float
    log2: bool = False

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a value. Values outside the scale are drawn at its ends."""
        low, value, high = self.low, min(max(value, self.low), self.high), self.high
        share = math.log2(value / low) / math.log2(high / low) if self.log2 else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def span(values: Iterable[float], margin: float = 0.06) -> tuple[float, float]:
    """Returns the lowest and highest value of an axis that shows all `values`; from zero unless that wastes space."""
    found = list(values)
    low, high = min(found), max(found)
    if low <= _FROM_ZERO * high:
        return 0.0, high * (1 + margin) or 1.0
    room = max(high - low, 0.04 * abs(high)) * max(margin, 0.12)
    return low - room, high + room


def nice_step(low: float, high: float, count: int) -> float:
    """Returns the round step that divides a span into about `count` parts, and at most `count` + 1."""
    rough = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * factor for factor in _STEPS if size * factor >= rough * 0.999)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Returns the multiples of a round step that lie between `low` and `high`."""
    step = nice_step(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def byte_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Returns ticks at round numbers of one binary unit, as value and label."""
    unit, size = next(((name, size) for name, size in _UNITS if high >= size), _UNITS[-1])
    return [
        (tick * size, f"{tick:,.4g} {unit}" if tick else "0") for tick in nice_ticks(low / size, high / size, count)
    ]


def rate_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Returns ticks of a throughput, as value and label."""
    return [(tick, short_number(tick)) for tick in nice_ticks(low, high, count)]


def power_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Returns the powers of two between `low` and `high`, or each second or third one if there are more than `most`.

    If there is none, the middle of the span is the only tick.
    """
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = max(math.ceil((last - first + 1) / max(most, 1)), 1)
    if last < first:
        middle = round(math.sqrt(low * high))
        return [(float(middle), f"{middle:,}")]
    return [(float(2**power), f"{2**power:,}") for power in range(first, last + 1, step)]


def size_ticks(sizes: Collection[int], x: AxisScale, font: float, most: int) -> list[tuple[float, str]]:
    """Returns a tick at each size if their labels fit beside each other in this size of letters; else `power_ticks`."""
    ticks = [(float(size), f"{size:,}") for size in sorted(set(sizes))]
    ends = [(x(size) - half, x(size) + half) for size, label in ticks for half in [text_width(label, font) / 2]]
    fits = all(left - right >= font / 2 for (_, right), (left, _) in pairwise(ends))
    return ticks if fits else power_ticks(x.low, x.high, most)


LINE = 17.0
"""Distance of two lines of text."""

NOT_FROM_ZERO = "The vertical axis does not start at zero."
"""Note on a chart whose vertical axis starts elsewhere, so that differences look larger than they are."""

MOST_POINTS, APART = 150, 5.0
"""Up to this many points, all are drawn. Otherwise one is drawn in each square of this size."""

_LABEL = 200
"""Number of characters after which a plan in words is cut."""
Ticks = Sequence[tuple[float, str]]
_SHAPES = {
    "af-rec": "M{0} {1}m0 -8l8 8l-8 8l-8 -8Z",
    "af-base": "M{0} {1}m-6 -6h12v12h-12Z",
    "af-x": "M{0} {1}m-4 -4l8 8m-8 0l8 -8",
}
"""Diamond of the recommended plan, square of the baseline, cross of what did not fit; other points are circles."""


def point(drawing: Drawing, x: float, y: float, row: PlanRow, kind: str = "") -> None:
    """Draws the point of a plan: a diamond if it is recommended, a square for the baseline, otherwise a circle.

    `kind` is the class of a circle; "af-x" draws a cross. The page shows the plan when its point is pointed at.
    """
    if kind != "af-x" and (row.role == "recommended" or row.is_baseline):
        kind = "af-rec" if row.role == "recommended" else "af-base"
    title = None
    if drawing.titles:
        title = element("title", " · ".join([shortened(row.label, _LABEL), *_figures(row), row.status]))
    mark(drawing, x, y, f"af-pt {kind}".rstrip(), title, row.rank)


def mark(
    drawing: Drawing, x: float, y: float, classes: str, title: Markup | None = None, rank: int | None = None
) -> None:
    """Draws the mark of these classes: a diamond, a square, a cross or else a circle. `rank` is that of its plan."""
    shape = next((_SHAPES[kind] for kind in classes.split() if kind in _SHAPES), None)
    if shape is None:
        drawing.add("circle", title, class_=classes, data_r=rank, cx=x, cy=y, r=4)
    else:
        drawing.add("path", title, class_=classes, data_r=rank, d=shape.format(number(x), number(y)))


def short_label(row: PlanRow) -> str:
    """Returns a plan in fewer words than its label: the batch as a product, and what it changes."""
    batch = f"micro batch {row.micro_batch_size:,}"
    batch += f" × {row.accumulation_steps:,}" if row.accumulation_steps > 1 else ""
    return batch if row.combination == BATCH_ONLY else f"{batch}: {shortened(row.combination, _LABEL)}"


def thinned(placed: Sequence[tuple[PlanRow, float, float]]) -> list[tuple[PlanRow, float, float]]:
    """Returns the points to draw, each with its plan: of many points in nearly one place, one is drawn.

    The recommended plan, the baseline and the Pareto front are always drawn, last. Up to `MOST_POINTS` points, all are.
    """
    seen, kept = set[tuple[int, int]](), list[tuple[PlanRow, float, float]]()
    for row, x, y in placed:
        place = int(x / APART), int(y / APART)
        if len(placed) <= MOST_POINTS or place not in seen or row.role or row.is_baseline or row.on_front:
            kept.append((row, x, y))
        seen.add(place)
    return sorted(kept, key=lambda found: (found[0].role == "recommended", found[0].is_baseline, found[0].on_front))


def _figures(row: PlanRow) -> list[str]:
    """Returns the throughput and the peak of a plan, as far as they are known."""
    rate = [] if row.rate_per_s is None else [f"{short_number(row.rate_per_s)}/s"]
    return rate if row.peak_bytes is None else [*rate, f"peak {format_bytes(row.peak_bytes)}"]


def axes(drawing: Drawing, area: Box, x: tuple[AxisScale, Ticks, str], y: tuple[AxisScale, Ticks, str]) -> None:
    """Draws the grid, the ticks and the names of both axes; each is given as scale, ticks and name."""
    scale, ticks, name = y
    drawing.text(0, area.top - 14, name, "af-note")
    levels(drawing, area, scale, ticks)
    scale, ticks, name = x
    drawing.line(area.left, area.bottom, area.right, area.bottom, "af-axis")
    for value, label in ticks:
        at = scale(value)
        drawing.line(at, area.bottom, at, area.bottom + 5, "af-axis")
        if at + text_width(label, SMALL) / 2 > WIDTH:  # a label at the end of the axis would be cut
            drawing.text(WIDTH, area.bottom + 19, label, "af-note", "end")
        else:
            drawing.text(at, area.bottom + 19, label, "af-note", "middle")
    drawing.text(area.right, area.bottom + 38, name, "af-note", "end")


def levels(drawing: Drawing, area: Box, y: AxisScale, ticks: Ticks) -> None:
    """Draws the horizontal lines of the grid with their labels."""
    for value, label in ticks:
        drawing.line(area.left, y(value), area.right, y(value), "af-grid")
        drawing.text(area.left - 8, y(value) + 4, label, "af-note", "end")


def margin(ticks: Ticks) -> float:
    """Returns the room that labels left of an axis need."""
    return max((text_width(label, SMALL) for _, label in ticks), default=20.0) + 12


def speed_area(
    drawing: Drawing, keys: Sequence[tuple[str, str]], rates: Iterable[float], height: float, most_ticks: int = 5,
    *, lane: float = 0.0, right: float = 14.0, room: float = 0.06,
) -> tuple[Box, AxisScale, Ticks]:  # fmt: skip
    """Draws the key of a chart of throughputs; returns the area below it, their vertical scale, and its ticks.

    `lane` is the height of a lane below the scale, and `right` is left free beside the area.
    """
    slow, fast = span(rates, room)
    ticks, top = rate_ticks(slow, fast, most_ticks), key(drawing, keys) + 34
    area = Box(margin(ticks), top, WIDTH - right, top + height + lane)
    drawing.height = area.bottom + 46
    if slow > 0:
        drawing.note = f"{drawing.note} {NOT_FROM_ZERO}".lstrip()
    return area, AxisScale(slow, fast, top + height, top), ticks


def key(drawing: Drawing, shapes: Sequence[tuple[str, str]]) -> float:
    """Draws a key of shapes, as class and text, over as many lines as needed at the top; returns where it ends."""
    x, y = 0.0, 10.0
    for kind, given in shapes:
        text = fitted(given, FONT, WIDTH - 22)
        width = 22 + text_width(text, FONT) + 14
        if x and x + width > WIDTH + 14:
            x, y = 0.0, y + LINE + 2
        if kind.startswith("af-bar"):
            drawing.rect(x + 1, y - 6, x + 15, y + 6, kind, 2)
        elif kind.startswith("af-pt"):
            mark(drawing, x + 8, y, kind)
        else:
            drawing.line(x, y, x + 16, y, kind)
        drawing.text(x + 22, y + 4.5, text, "af-label")
        x += width
    return y + 10


def plan_keys(report: Report, drawn: Collection[int]) -> list[tuple[str, str]]:
    """Returns the entries of a key for the recommended plan and the baseline, with their throughput and peak.

    Those whose ranks are not among the drawn are left out.
    """
    recommended, baseline = report.recommended, report.baseline
    found = []
    if recommended is not None and recommended.rank in drawn:
        same = "recommended: the baseline" if recommended.is_baseline else "recommended plan"
        found.append(("af-pt af-rec", ", ".join([same, *_figures(recommended)])))
    if baseline is not None and baseline.role != "recommended" and baseline.rank in drawn:
        found.append(("af-pt af-base", ", ".join(["baseline", *_figures(baseline)])))
    return found


def shown_budget(report: Report, high: float) -> bool:
    """Returns whether an axis that ends at `high` can be stretched to the budget and still show the plans apart."""
    return report.budget_bytes <= 1.6 * high
