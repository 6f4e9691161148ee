"""Memory breakdown: what makes up the peak of the recommended plan and of the baseline."""

from collections.abc import Sequence

from autofit.core.units import format_bytes
from autofit.memory.breakdown import Part
from autofit.reports.report import PlanMemory, Report
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import fitted, text_width
from autofit.reports.svg.marks import LINE, bound_label, key, shown_budget, upper_bounds
from autofit.reports.svg.scales import AxisScale

MOST_MODULES = 8
"""Number of modules shown by name; the others are one entry."""
_OTHERS = "other modules"
_BAR, _GAP = 13.0, 3.0
_STYLES = {"recommended": "af-bar-rec", "baseline": "af-bar-base"}

Entry = tuple[str, tuple[int, ...]]
"""A name, and its bytes in each plan."""


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report that has the memory of a plan."""
    drawing = Drawing(form, _about(report))
    y = key(drawing, _keys(report, form), 2) + 20
    kinds, modules = _kinds(report), _modules(report)
    totals = tuple(sum(part.size_bytes for part in plan.profile.breakdown.kinds) for plan in report.memory)
    sized = [("Peak, as traced", totals), *kinds, *modules]
    room = max(text_width(format_bytes(size), SMALL) for _, sizes in sized for size in sizes) + 10
    names = 0.0 if form.narrow else min(max(text_width(name, FONT) for name, _ in sized), 280) + 14
    high = float(max(totals)) or 1.0
    with_budget = shown_budget(report, high)
    high = max(high, report.budget_bytes) if with_budget else high
    x = AxisScale(0.0, high, names, form.width - room)
    start, behind = y, len(drawing.parts)
    y = _entries(drawing, report, [sized[0]], x, y)
    if with_budget:
        at = x(report.budget_bytes)
        drawing.line(at, start - 2, at, y - 6, "af-budget")
        drawing.parts.insert(behind, drawing.parts.pop())  # the sizes stay readable where they cross the line
        drawing.text(at, start - 8, f"budget {format_bytes(report.budget_bytes)}", "af-bad", "end")
    y = _entries(drawing, report, kinds, x, _heading(drawing, "By kind", y))
    if modules:
        heading = "Activations and temporaries by module"
        y = _entries(drawing, report, modules, x, _heading(drawing, heading, y))
    drawing.height = y
    return drawing


def _named(plan: PlanMemory) -> str:
    return "recommended plan" if plan.role == "recommended" else "baseline"


def _keys(report: Report, form: Format) -> list[tuple[str, str]]:
    """Returns the style and name of each plan."""
    bound = bound_label(form)
    return [
        (_STYLES[plan.role], f"{_named(plan)}: {bound}" if report.is_upper_bound(plan) else _named(plan))
        for plan in report.memory
    ]


def _heading(drawing: Drawing, text: str, y: float) -> float:
    drawing.line(0, y + 2, drawing.format.width, y + 2, "af-grid")
    drawing.text(0, y + 24, text, "af-strong")
    return y + 36


def _entries(drawing: Drawing, report: Report, entries: Sequence[Entry], x: AxisScale, y: float) -> float:
    """Draws one bar for each plan and entry; returns where they end."""
    count = len(report.memory)
    for name, sizes in entries:
        if x.start == 0:  # a narrow drawing has the name above its bars
            drawing.text(0, y + 11, fitted(name, FONT, drawing.format.width))
            y += LINE
        else:
            middle = y + (count * (_BAR + _GAP) - _GAP) / 2
            drawing.text(0, middle + 4.5, fitted(name, FONT, x.start - 10))
        for plan, size in zip(report.memory, sizes, strict=True):
            end = x(size)
            if size:
                drawing.rect(x.start, y, max(end, x.start + 1), y + _BAR, _STYLES[plan.role], 2)
            drawing.text(end + 6, y + 11, format_bytes(size) if size else "none", "af-note")
            y += _BAR + _GAP
        y += 9
    return y


def _kinds(report: Report) -> list[Entry]:
    return _matched([plan.profile.breakdown.kinds for plan in report.memory])


def _modules(report: Report) -> list[Entry]:
    """Returns the largest modules, and the others together."""
    found = _matched([plan.profile.breakdown.modules for plan in report.memory])
    rest = found[MOST_MODULES:]
    if len(rest) < 2:
        return found
    others = tuple(sum(sizes[place] for _, sizes in rest) for place in range(len(report.memory)))
    return [*found[:MOST_MODULES], (f"{len(rest)} {_OTHERS}", others)]


def _matched(plans: Sequence[Sequence[Part]]) -> list[Entry]:
    """Returns the parts of all plans by name, largest first."""
    counts = {part.name: part.count for parts in plans for part in parts}
    sizes = [{part.name: part.size_bytes for part in parts} for parts in plans]
    entries = [(name, tuple(of.get(name, 0) for of in sizes)) for name in counts]
    entries.sort(key=lambda entry: (-max(entry[1]), entry[0]))
    return [(f"{name} × {counts[name]}" if counts[name] > 1 else name, found) for name, found in entries]


def _about(report: Report) -> str:
    texts = ["Memory at the peak by kind of tensor and by module."]
    for plan in report.memory:
        total = sum(part.size_bytes for part in plan.profile.breakdown.kinds)
        largest = max(plan.profile.breakdown.kinds, key=lambda part: part.size_bytes, default=None)
        part = f", most of it {largest.name}" if largest is not None and largest.size_bytes > total / 2 else ""
        texts.append(f"{_named(plan).capitalize()}: {format_bytes(total)}{part}.")
    return " ".join(texts)


def table(report: Report) -> DataTable:
    """Returns the bytes of each kind and module in each plan."""
    head = ("part of the peak", *(name for _, name in _keys(report, Format())))
    entries = [*_kinds(report), *((f"module {name}", sizes) for name, sizes in _modules(report))]
    return DataTable(head, tuple((name, *(format_bytes(size) for size in sizes)) for name, sizes in entries))


BREAKDOWN: Chart = Chart(
    kind="breakdown",
    heading="What the memory holds",
    aid="All bars share one scale. They show the moment at which memory peaks.",
    missing="the memory of the plans was not traced",
    available=lambda report: bool(report.memory),
    draw=draw,
    table=table,
    note=upper_bounds,
)
"""What makes up the peak, by kind of tensor and by module."""
