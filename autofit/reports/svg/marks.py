"""Marks: axes, keys and the points of plans, the same in all charts."""

from collections.abc import Collection, Sequence

from autofit.core.units import format_bytes, short_number
from autofit.reports.markup import element, number, shortened
from autofit.reports.report import BATCH_ONLY, UPPER_BOUND, PlanRow, Report
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, text_width
from autofit.reports.svg.scales import AxisScale

LINE = 17.0
"""Distance of two lines of text."""

NOT_FROM_ZERO = "The vertical axis does not start at zero."
"""Note on a chart whose vertical axis starts elsewhere, so that differences look larger than they are."""

MOST_POINTS, APART = 150, 5.0
"""Up to this many points, all are drawn. Otherwise one is drawn in each square of this size."""

_LABEL = 200
"""Number of characters after which a plan in words is cut."""

Ticks = Sequence[tuple[float, str]]


def point(drawing: Drawing, x: float, y: float, row: PlanRow, kind: str = "") -> None:
    """Draws the point of a plan: a diamond if it is recommended, a square for the baseline, otherwise a circle.

    Args:
        drawing: to draw on.
        x: of the centre.
        y: of the centre.
        row: the plan; the page shows it when its point is pointed at.
        kind: class of a circle; "af-x" draws a cross.
    """
    style, path = kind, ""
    if kind == "af-x":
        path = _path(x, y, "cross")
    elif row.role == "recommended":
        style, path = "af-rec", _path(x, y, "diamond")
    elif row.is_baseline:
        style, path = "af-base", _path(x, y, "square")
    title = element("title", tip(row)) if drawing.format.titles else None
    classes = f"af-pt {style}".rstrip()
    if path:
        drawing.add("path", title, class_=classes, data_r=row.rank, d=path)
    else:
        drawing.add("circle", title, class_=classes, data_r=row.rank, cx=x, cy=y, r=4)


def short_label(row: PlanRow) -> str:
    """Returns a plan in fewer words than its label: the batch as a product, and what it changes."""
    batch = f"micro batch {row.micro_batch_size:,}"
    batch += f" × {row.accumulation_steps:,}" if row.accumulation_steps > 1 else ""
    return batch if row.combination == BATCH_ONLY else f"{batch}: {shortened(row.combination, _LABEL)}"


def thinned(placed: Sequence[tuple[PlanRow, float, float]]) -> list[tuple[PlanRow, float, float]]:
    """Returns the points to draw, each with its plan: of many points in nearly one place, one is drawn.

    The recommended plan, the baseline and the Pareto front are always drawn. Up to `MOST_POINTS` points, all are.
    """
    if len(placed) <= MOST_POINTS:
        return list(placed)
    seen, kept = set[tuple[int, int]](), list[tuple[PlanRow, float, float]]()
    for row, x, y in placed:
        place = int(x / APART), int(y / APART)
        if place not in seen or row.role or row.is_baseline or row.on_front:
            kept.append((row, x, y))
        seen.add(place)
    return kept


def tip(row: PlanRow) -> str:
    """Returns the tooltip of a plan's point, which is shown where no script can show more."""
    rate = "" if row.rate_per_s is None else f" · {short_number(row.rate_per_s)}/s"
    peak = "" if row.peak_bytes is None else f" · peak {format_bytes(row.peak_bytes)}"
    return f"{shortened(row.label, _LABEL)}{rate}{peak} · {row.status}"


def _path(x: float, y: float, shape: str) -> str:
    corners = {
        "diamond": ((0, -8), (8, 0), (0, 8), (-8, 0)),
        "square": ((-6, -6), (6, -6), (6, 6), (-6, 6)),
    }
    if shape == "cross":
        ends = (((-4, -4), (4, 4)), ((-4, 4), (4, -4)))
        return "".join(
            f"M{number(x + a)} {number(y + b)}L{number(x + c)} {number(y + d)}" for (a, b), (c, d) in ends
        )  # fmt: skip
    return "M" + "L".join(f"{number(x + dx)} {number(y + dy)}" for dx, dy in corners[shape]) + "Z"


def axes(drawing: Drawing, area: Box, x: tuple[AxisScale, Ticks, str], y: tuple[AxisScale, Ticks, str]) -> None:
    """Draws the grid, the ticks and the names of both axes; each is given as scale, ticks and name."""
    scale, ticks, name = y
    for value, label in ticks:
        at = scale(value)
        drawing.line(area.left, at, area.right, at, "af-grid")
        drawing.text(area.left - 8, at + 4, label, "af-note", "end")
    drawing.text(0, area.top - 14, name, "af-note")
    scale, ticks, name = x
    drawing.line(area.left, area.bottom, area.right, area.bottom, "af-axis")
    for value, label in ticks:
        at = scale(value)
        drawing.line(at, area.bottom, at, area.bottom + 5, "af-axis")
        if at + text_width(label, SMALL) / 2 > drawing.format.width:  # a label at the end of the axis would be cut
            drawing.text(drawing.format.width, area.bottom + 19, label, "af-note", "end")
        else:
            drawing.text(at, area.bottom + 19, label, "af-note", "middle")
    drawing.text(area.right, area.bottom + 38, name, "af-note", "end")


def margin(ticks: Ticks) -> float:
    """Returns the room that labels left of an axis need."""
    return max((text_width(label, SMALL) for _, label in ticks), default=20.0) + 12


def key(drawing: Drawing, shapes: Sequence[tuple[str, str]], top: float) -> float:
    """Draws a key of shapes and what they stand for, over as many lines as needed; returns where it ends.

    Args:
        drawing: to draw on.
        shapes: class and text of each entry.
        top: where it begins.
    """
    x, y = 0.0, top + 8
    for kind, text in shapes:
        width = 22 + text_width(text, FONT) + 14
        if x and x + width > drawing.format.width + 14:
            x, y = 0.0, y + LINE + 2
        _shape(drawing, x + 8, y, kind)
        drawing.text(x + 22, y + 4.5, text, "af-label")
        x += width
    return y + 10


def _shape(drawing: Drawing, x: float, y: float, kind: str) -> None:
    shapes = {"af-pt af-rec": "diamond", "af-pt af-base": "square", "af-pt af-x": "cross"}
    if kind in shapes:
        drawing.add("path", class_=kind, d=_path(x, y, shapes[kind]))
    elif kind.startswith("af-bar"):
        drawing.rect(x - 7, y - 6, x + 7, y + 6, kind, 2)
    elif kind.startswith("af-pt"):
        drawing.add("circle", class_=kind, cx=x, cy=y, r=4)
    else:
        drawing.line(x - 8, y, x + 8, y, kind)


def plan_keys(report: Report, drawn: Collection[int]) -> list[tuple[str, str]]:
    """Returns the entries of a key for the recommended plan and the baseline, if their ranks are among the drawn."""
    recommended, baseline = report.recommended, report.baseline
    found = []
    if recommended is not None and recommended.rank in drawn:
        same = "recommended: the baseline" if recommended.is_baseline else "recommended plan"
        found.append(("af-pt af-rec", same))
    if baseline is not None and baseline.role != "recommended" and baseline.rank in drawn:
        found.append(("af-pt af-base", "baseline"))
    return found


def shown_budget(report: Report, high: float) -> bool:
    """Returns whether an axis that ends at `high` can be stretched to the budget and still show the plans apart."""
    return report.budget_bytes <= 1.6 * high


def bound_label(form: Format) -> str:
    """Returns how a trace that holds for all possible data is labelled; a narrow drawing has no room for the reason."""
    return "upper bound" if form.narrow else UPPER_BOUND


def upper_bounds(report: Report) -> str:
    """Returns which traced plans have an upper bound in place of their memory, and why; "" if none has."""
    names = {"recommended": "recommended plan", "baseline": "baseline"}
    named = " and ".join(f"the {names[plan.role]}" for plan in report.memory if report.is_upper_bound(plan))
    return f"The memory of {named} is an {UPPER_BOUND}." if named else ""
