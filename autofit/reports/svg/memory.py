"""Charts of memory: what makes up the peak, live tensors over a step, and estimates against measurements."""

from collections.abc import Sequence
from statistics import median

from autofit.core.units import format_bytes
from autofit.memory.breakdown import Part
from autofit.memory.profile import StepPhase
from autofit.memory.trace import Kind
from autofit.reports.markup import DataTable
from autofit.reports.report import UPPER_BOUND, PlanMemory, PlanRow, Report
from autofit.reports.sentences import counted, difference
from autofit.reports.svg.axes import (
    LINE,
    AxisScale,
    axes,
    bound_label,
    byte_ticks,
    key,
    margin,
    plan_keys,
    point,
    shown_budget,
    span,
    thinned,
    upper_bounds,
)
from autofit.reports.svg.drawing import FONT, SMALL, Box, Chart, Drawing, Format, fitted, text_width

MOST_MODULES = 8
"""Number of modules shown by name; the others are one entry."""
_OTHERS = "other modules"
_BAR, _GAP = 13.0, 3.0
_STYLES = {"recommended": "af-bar-rec", "baseline": "af-bar-base"}

Entry = tuple[str, tuple[int, ...]]
"""A name, and its bytes in each plan."""


def _parts_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report that has the memory of a plan."""
    drawing = Drawing(form, _parts_about(report))
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


def _parts_about(report: Report) -> str:
    texts = ["Memory at the peak by kind of tensor and by module."]
    for plan in report.memory:
        total = sum(part.size_bytes for part in plan.profile.breakdown.kinds)
        largest = max(plan.profile.breakdown.kinds, key=lambda part: part.size_bytes, default=None)
        part = f", most of it {largest.name}" if largest is not None and largest.size_bytes > total / 2 else ""
        texts.append(f"{_named(plan).capitalize()}: {format_bytes(total)}{part}.")
    return " ".join(texts)


def _parts_table(report: Report) -> DataTable:
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
    draw=_parts_draw,
    table=_parts_table,
    note=upper_bounds,
)
"""What makes up the peak, by kind of tensor and by module."""


_KINDS = tuple(
    kind.value
    for kind in (
        Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE, Kind.GRADIENT, Kind.BATCH, Kind.ACTIVATION, Kind.TEMPORARY,
        Kind.WORKSPACE,
    )
)  # fmt: skip
"""The kinds from the bottom of the stack. The style sheet has a colour for each, by its place."""
_NAMES = {"recommended": "Recommended", "baseline": "Baseline"}


def _step_draw(report: Report, form: Format) -> Drawing:
    """Returns one panel for each plan, all with the same axis of memory."""
    plans = _drawn(report)
    drawing = Drawing(form, _step_about(report))
    peak = max(max(*plan.profile.live_bytes, plan.profile.peak_bytes) for plan in plans)
    with_budget = shown_budget(report, peak)
    high = max(1.2 * peak, 1.08 * report.budget_bytes if with_budget else 0.0)  # the peak has its label above it
    ticks = byte_ticks(0, high, 4)
    height, y = (150.0 if form.narrow else 170.0), _key(drawing, plans)
    for plan in plans:
        area = Box(margin(ticks), y + 52, form.width - 8, y + 52 + height)
        scale = AxisScale(0, high, area.bottom, area.top)
        for value, label in ticks:
            drawing.line(area.left, scale(value), area.right, scale(value), "af-grid")
            drawing.text(area.left - 8, scale(value) + 4, label, "af-note", "end")
        _title(drawing, plan, report.is_upper_bound(plan), y)
        behind = len(drawing.parts)
        _panel(drawing, plan, area, scale)
        if with_budget:
            at = scale(report.budget_bytes)
            drawing.line(area.left, at, area.right, at, "af-budget")
            drawing.parts.insert(behind, drawing.parts.pop())  # the peak stays readable where it crosses the line
            text, below = f"budget {format_bytes(report.budget_bytes)}", at - area.top < LINE  # phases are named above
            drawing.text(area.right - 6, at + 14 if below else at - 6, text, "af-bad", "end")
        y = area.bottom + 26
    note = "allocations and releases of the step, in order →"
    drawing.text(form.width - 8, y - 4, note, "af-note", "end")
    if not with_budget:
        beyond = f"The budget of {format_bytes(report.budget_bytes)} is beyond this axis."
        drawing.text(0, y + 16, beyond, "af-bad")
        y += 22
    drawing.height = y + 6
    return drawing


def _key(drawing: Drawing, plans: Sequence[PlanMemory]) -> float:
    """Draws the key of the kinds, if they are known; returns where it ends."""
    held = {kind for plan in plans for kind in plan.profile.kinds}
    keys = [(f"af-bar af-k{place}", kind) for place, kind in enumerate(_KINDS) if kind in held]
    return key(drawing, keys, 2) + 6 if keys else 0.0


def _drawn(report: Report) -> list[PlanMemory]:
    return [plan for plan in report.memory if plan.profile.live_bytes]


def _title(drawing: Drawing, plan: PlanMemory, is_bound: bool, y: float) -> None:
    name = f"{_NAMES[plan.role]}: {bound_label(drawing.format)}" if is_bound else _NAMES[plan.role]
    drawing.text(0, y + 16, name, "af-strong")
    left = text_width(name, FONT) * 1.1 + 8
    drawing.text(left, y + 16, fitted(plan.label, SMALL, drawing.format.width - left), "af-note")


def _panel(drawing: Drawing, plan: PlanMemory, area: Box, y: AxisScale) -> None:
    """Draws the phases, the live tensors, and the peak with what comes on top of them."""
    profile = plan.profile
    live, style = profile.live_bytes, "rec" if plan.role == "recommended" else "base"
    x = AxisScale(0, len(live), area.left, area.right)
    for place, phase in enumerate(profile.phases):
        left, right = x(phase.start), x(phase.end)
        if place % 2:
            drawing.rect(left, area.top - 20, right, area.bottom, "af-band")
        if text_width(phase.name, SMALL) <= right - left - 4:
            drawing.text((left + right) / 2, area.top - 7, phase.name, "af-note", "middle")
    steps = [(x(place + 0.5), y(value)) for place, value in enumerate(live)]
    steps = [(x(0), steps[0][1]), *steps, (x(len(live)), steps[-1][1])]
    _stack(drawing, plan, area, x, y)
    drawing.polyline(steps, f"af-line-{style}")
    drawing.line(area.left, area.bottom, area.right, area.bottom, "af-axis")
    top = max(live)
    more = profile.peak_bytes > 1.02 * top
    below = 16 if more else -6  # what comes on top of live tensors is drawn above them
    _peak(drawing, (x(live.index(top) + 0.5), y(top)), f"{format_bytes(top)} live", below, area, style)
    if more:
        at = y(profile.peak_bytes)
        drawing.line(area.left, at, area.right, at, "af-peak")
        extra = "" if drawing.format.narrow else " with the allocator's cache and context"
        text = f"peak {format_bytes(profile.peak_bytes)}{extra}"
        drawing.text(area.left + 6, at - 5, fitted(text, SMALL, area.right - area.left - 12), "af-note")


def _stack(drawing: Drawing, plan: PlanMemory, area: Box, x: AxisScale, y: AxisScale) -> None:
    """Fills the area below the line, kind by kind; in one colour if the kinds are unknown."""
    live = plan.profile.live_bytes
    layers = _layers(plan) or [(f"af-area-{'rec' if plan.role == 'recommended' else 'base'}", live)]
    below = [0] * len(live)
    for style, sizes in layers:
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        lower, upper = ([(x(place + 0.5), y(value)) for place, value in enumerate(edge)] for edge in (below, above))
        ends = [(area.left, upper[0][1]), *upper, (area.right, upper[-1][1])]
        drawing.polyline([*ends, (area.right, lower[-1][1]), *reversed(lower), (area.left, lower[0][1])], style)
        below = above


def _layers(plan: PlanMemory) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the style and the bytes of each kind, from the bottom; what lives throughout the step comes first."""
    return [
        (f"af-k{place}", plan.profile.kinds[kind]) for place, kind in enumerate(_KINDS) if kind in plan.profile.kinds
    ]


def _peak(drawing: Drawing, at: tuple[float, float], text: str, below: float, area: Box, style: str) -> None:
    """Marks the highest point, with its label the given distance below it."""
    x, y = at
    drawing.add("circle", class_=f"af-bar-{style}", cx=x, cy=y, r=3.5)
    width = text_width(text, SMALL)
    right = x + 8 + width < area.right
    drawing.text(x + 8 if right else x - 8, y + below, text, "af-note", "" if right else "end")


def _step_about(report: Report) -> str:
    texts = ["Live tensors over one optimizer step, phase by phase."]
    for plan in _drawn(report):
        peak = max(plan.profile.live_bytes)
        phase = _phase_at(plan.profile.phases, plan.profile.live_bytes.index(peak))
        texts.append(f"{_NAMES[plan.role]}: highest in the phase {phase}, {format_bytes(peak)}.")
    return " ".join(texts)


def _phase_at(phases: tuple[StepPhase, ...], place: int) -> str:
    return next((phase.name for phase in phases if phase.start <= place < phase.end), "step")


def traced_steps(report: Report) -> str:
    """Returns which plans have more accumulation steps than their trace shows; "" if none has."""
    texts = list[str]()
    for plan in _drawn(report):
        row = report.recommended if plan.role == "recommended" else report.baseline
        shown = sum(phase.name == "forward" for phase in plan.profile.phases)
        if row is not None and 0 < shown < row.accumulation_steps:
            name = "the recommended plan" if plan.role == "recommended" else "the baseline"
            texts.append(f"{shown} of the {row.accumulation_steps:,} accumulation steps of {name}")
    return f"The timeline shows {' and '.join(texts)}; the others repeat the last one." if texts else ""


def _step_table(report: Report) -> DataTable:
    """Returns the highest and the last value of each phase."""
    rows = list[tuple[str, ...]]()
    for plan in _drawn(report):
        live = plan.profile.live_bytes
        name = f"{_NAMES[plan.role]}: {UPPER_BOUND}" if report.is_upper_bound(plan) else _NAMES[plan.role]
        for phase in plan.profile.phases:
            found = live[phase.start : phase.end]
            if found:
                rows.append((name, phase.name, format_bytes(max(found)), format_bytes(found[-1])))
    return DataTable(("plan", "phase", "highest", "at its end"), tuple(rows))


TIMELINE: Chart = Chart(
    kind="timeline",
    heading="Memory during one optimizer step",
    aid="Live tensors at each allocation and release, in order; the horizontal axis is not time.",
    missing="the memory of the plans was not traced",
    available=lambda report: bool(_drawn(report)),
    draw=_step_draw,
    table=_step_table,
    note=lambda report: f"{traced_steps(report)} {upper_bounds(report)}".strip(),
)
"""Live tensors over one optimizer step."""


MOST_BOUNDS = 60
"""Number of plans up to which the bounds of estimates are drawn; more would hide the points."""


def _estimates_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one plan that was both estimated and measured."""
    rows = _compared(report)
    drawing = Drawing(form, _estimates_about(report, rows))
    bounded = rows if len(rows) <= MOST_BOUNDS else []
    low, high = span([*_values(rows), *(end for row in bounded for end in _interval(row))], 0.08)
    ticks = byte_ticks(low, high, 3 if form.narrow else 6)
    known = plan_keys(report, {row.rank for row in rows})
    others = [("af-pt", "other plan")] if len(rows) > len(known) else []
    top = key(drawing, [*known, *others], 2) + 34
    side = 250.0 if form.narrow else 360.0
    left = margin(ticks)
    area = Box(left, top, min(form.width - 14, left + 1.7 * side), top + side)
    x, y = AxisScale(low, high, area.left, area.right), AxisScale(low, high, area.bottom, area.top)
    axes(drawing, area, (x, ticks, "measured peak"), (y, ticks, "estimated peak"))
    drawing.line(area.left, area.bottom, area.right, area.top, "af-axis")
    drawing.text(area.right - 8, area.bottom - 10, "needed more than estimated", "af-note", "end")
    drawing.text(area.left + 10, area.top + 16, "needed less than estimated", "af-note")
    for row in bounded:
        _bounds(drawing, row, x, y)
    placed = [(row, x(row.peak_bytes or 0), y(_estimated(row))) for row in rows]
    for row, at_x, at_y in sorted(
        thinned(placed), key=lambda found: (found[0].role == "recommended", found[0].is_baseline)
    ):
        point(drawing, at_x, at_y, row)
    drawing.height = area.bottom + 46
    return drawing


def _compared(report: Report) -> list[PlanRow]:
    return [row for row in report.rows if row.peak_bytes and row.expected_bytes is not None]


def _estimated(row: PlanRow) -> int:
    return row.estimate.value_bytes if row.estimate is not None else 0


def _values(rows: list[PlanRow]) -> list[float]:
    return [float(value) for row in rows for value in (_estimated(row), row.peak_bytes or 0)]


def _interval(row: PlanRow) -> list[float]:
    """Returns the bounds that an estimate has, at most two."""
    ends = () if row.estimate is None else (row.estimate.lower_bytes, row.estimate.upper_bytes)
    return [float(end) for end in ends if end is not None]


def _bounds(drawing: Drawing, row: PlanRow, x: AxisScale, y: AxisScale) -> None:
    """Draws the interval of an estimate, with a mark at each bound; without one it ends at the estimate."""
    at, bounds = x(row.peak_bytes or 0), [y(end) for end in _interval(row)]
    ends = [*bounds, y(_estimated(row))]
    drawing.line(at, max(ends), at, min(ends), "af-bound")
    for end in bounds:
        drawing.line(at - 3, end, at + 3, end, "af-bound")


def _estimates_about(report: Report, rows: list[PlanRow]) -> str:
    about = f"Estimated against measured peaks of {counted(len(rows), 'plan')}. {accuracy(rows)}"
    return f"{about} {omitted(report)}".rstrip()


def omitted(report: Report) -> str:
    """Returns how many measured plans are left out since their estimate is an upper bound; "" if none is."""
    count = sum(bool(row.peak_bytes) and row.has_worst_case for row in report.rows)
    if not count:
        return ""
    return f"{counted(count, 'plan')} {'is' if count == 1 else 'are'} left out: the estimate is an {UPPER_BOUND}."


def accuracy(rows: list[PlanRow]) -> str:
    """Returns in a sentence how far the estimates of measured plans are off."""
    errors = [_estimated(row) / (row.peak_bytes or 1) - 1 for row in rows]
    worst = max(errors, key=abs)
    row = rows[errors.index(worst)]
    size = f"{format_bytes(_estimated(row))} for {format_bytes(row.peak_bytes)}"
    middle = median(abs(error) for error in errors)
    return f"The median error is {middle:.1%}, the largest {difference(worst)} ({size})."


ESTIMATES: Chart = Chart(
    kind="estimates",
    heading="Estimated and measured memory",
    aid="A point on the diagonal was estimated exactly; below it, the plan needed more memory than estimated.",
    missing="no measured plan has an estimate other than an upper bound",
    available=lambda report: bool(_compared(report)),
    draw=_estimates_draw,
    table=lambda report: None,
)
"""Estimated against measured peaks."""
