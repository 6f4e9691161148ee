"""Charts of memory: what makes up the peak, and live tensors over a step."""

from collections.abc import Sequence

from autofit.core.units import format_bytes
from autofit.memory.breakdown import Part
from autofit.memory.trace import Kind
from autofit.reports.markup import DataTable
from autofit.reports.report import UPPER_BOUND, PlanMemory, Report
from autofit.reports.svg.axes import LINE, AxisScale, byte_ticks, key, levels, margin, shown_budget
from autofit.reports.svg.drawing import FONT, SMALL, Box, Chart, Drawing, Format, fitted, text_width

MOST_MODULES = 8
"""Number of modules shown by name; the others are one entry."""
_OTHERS = "other modules"
_BAR, _GAP = 13.0, 3.0
_NAMES = {"recommended": "recommended plan", "baseline": "baseline"}
_STYLES = {"recommended": "rec", "baseline": "base"}
"""End of the classes of a plan in the style sheet."""

Entry = tuple[str, tuple[int, ...]]
"""A name, and its bytes in each plan."""


def _named(report: Report, plan: PlanMemory) -> str:
    """Returns the name of a plan, and that its trace is an upper bound if it is."""
    name = _NAMES[plan.role]
    return f"{name}: {UPPER_BOUND}" if report.is_upper_bound(plan) else name


def _upper_bounds(report: Report) -> str:
    """Returns which traced plans have an upper bound in place of their memory, and why; "" if none has."""
    named = " and ".join(f"the {_NAMES[plan.role]}" for plan in report.memory if report.is_upper_bound(plan))
    return f"The memory of {named} is an {UPPER_BOUND}." if named else ""


def _parts_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report that has the memory of a plan."""
    drawing = Drawing(form, _parts_about(report))
    y = key(drawing, [(f"af-bar-{_STYLES[plan.role]}", _named(report, plan)) for plan in report.memory], 2) + 20
    total, kinds, modules = ("Peak, as traced", _totals(report)), _kinds(report), _modules(report)
    sized = [total, *kinds, *modules]
    room = max(text_width(format_bytes(size), SMALL) for _, sizes in sized for size in sizes) + 10
    names = min(max(text_width(name, FONT) for name, _ in sized), 280) + 14
    high = float(max(total[1])) or 1.0
    with_budget = shown_budget(report, high)
    x = AxisScale(0.0, max(high, report.budget_bytes) if with_budget else high, names, form.width - room)
    if with_budget:  # drawn first: the sizes stay readable where they cross the line
        at = x(report.budget_bytes)
        drawing.line(at, y - 2, at, y + len(report.memory) * (_BAR + _GAP) + 3, "af-budget")
        drawing.text(at, y - 8, f"budget {format_bytes(report.budget_bytes)}", "af-bad", "end")
    y = _entries(drawing, report, [total], x, y)
    y = _entries(drawing, report, kinds, x, _heading(drawing, "By kind", y))
    if modules:
        y = _entries(drawing, report, modules, x, _heading(drawing, "Activations and temporaries by module", y))
    drawing.height = y
    return drawing


def _heading(drawing: Drawing, text: str, y: float) -> float:
    drawing.line(0, y + 2, drawing.format.width, y + 2, "af-grid")
    drawing.text(0, y + 24, text, "af-strong")
    return y + 36


def _entries(drawing: Drawing, report: Report, entries: Sequence[Entry], x: AxisScale, y: float) -> float:
    """Draws one bar for each plan and entry; returns where they end."""
    for name, sizes in entries:
        middle = y + (len(sizes) * (_BAR + _GAP) - _GAP) / 2
        drawing.text(0, middle + 4.5, fitted(name, FONT, x.start - 10))
        for plan, size in zip(report.memory, sizes, strict=True):
            end = x(size)
            if size:
                drawing.rect(x.start, y, max(end, x.start + 1), y + _BAR, f"af-bar-{_STYLES[plan.role]}", 2)
            drawing.text(end + 6, y + 11, format_bytes(size) if size else "none", "af-note")
            y += _BAR + _GAP
        y += 9
    return y


def _totals(report: Report) -> tuple[int, ...]:
    return tuple(sum(part.size_bytes for part in plan.profile.breakdown.kinds) for plan in report.memory)


def _kinds(report: Report) -> list[Entry]:
    return _matched([plan.profile.breakdown.kinds for plan in report.memory])


def _modules(report: Report) -> list[Entry]:
    """Returns the largest modules, and the others together."""
    found = _matched([plan.profile.breakdown.modules for plan in report.memory])
    rest = found[MOST_MODULES:]
    if len(rest) < 2:
        return found
    others = tuple(map(sum, zip(*(sizes for _, sizes in rest), strict=True)))
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
    for plan, total in zip(report.memory, _totals(report), strict=True):
        largest = max(plan.profile.breakdown.kinds, key=lambda part: part.size_bytes, default=None)
        part = f", most of it {largest.name}" if largest is not None and largest.size_bytes > total / 2 else ""
        texts.append(f"{_NAMES[plan.role].capitalize()}: {format_bytes(total)}{part}.")
    return " ".join(texts)


def _parts_table(report: Report) -> DataTable:
    """Returns the bytes of each kind and module in each plan."""
    head = ("part of the peak", *(_named(report, plan) for plan in report.memory))
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
    note=_upper_bounds,
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
_PANEL = 170.0
"""Height of the panel of a plan."""


def _step_draw(report: Report, form: Format) -> Drawing:
    """Returns one panel for each plan, all with the same axis of memory."""
    plans = _drawn(report)
    drawing = Drawing(form, _step_about(report))
    peak = max(max(*plan.profile.live_bytes, plan.profile.peak_bytes) for plan in plans)
    with_budget = shown_budget(report, peak)
    high = max(1.2 * peak, 1.08 * report.budget_bytes if with_budget else 0.0)  # the peak has its label above it
    ticks = byte_ticks(0, high, 4)
    held = {kind for plan in plans for kind in plan.profile.kinds}
    keys = [(f"af-bar af-k{place}", kind) for place, kind in enumerate(_KINDS) if kind in held]
    y = key(drawing, keys, 2) + 6 if keys else 0.0
    for plan in plans:
        area = Box(margin(ticks), y + 52, form.width - 8, y + 52 + _PANEL)
        scale = AxisScale(0, high, area.bottom, area.top)
        levels(drawing, area, scale, ticks)
        _title(drawing, _named(report, plan).capitalize(), plan.label, y + 16)
        if with_budget:  # drawn first: the peak stays readable where it crosses the line
            _budget(drawing, report.budget_bytes, area, scale)
        _panel(drawing, plan, area, scale)
        y = area.bottom + 26
    drawing.text(form.width - 8, y - 4, "allocations and releases of the step, in order →", "af-note", "end")
    if not with_budget:
        drawing.text(0, y + 16, f"The budget of {format_bytes(report.budget_bytes)} is beyond this axis.", "af-bad")
        y += 22
    drawing.height = y + 6
    return drawing


def _drawn(report: Report) -> list[PlanMemory]:
    return [plan for plan in report.memory if plan.profile.live_bytes]


def _title(drawing: Drawing, name: str, label: str, y: float) -> None:
    left = text_width(name, FONT) * 1.1 + 8
    drawing.text(0, y, name, "af-strong")
    drawing.text(left, y, fitted(label, SMALL, drawing.format.width - left), "af-note")


def _budget(drawing: Drawing, budget_bytes: int, area: Box, y: AxisScale) -> None:
    at = y(budget_bytes)
    drawing.line(area.left, at, area.right, at, "af-budget")
    below = at - area.top < LINE  # phases are named above
    text = f"budget {format_bytes(budget_bytes)}"
    drawing.text(area.right - 6, at + 14 if below else at - 6, text, "af-bad", "end")


def _panel(drawing: Drawing, plan: PlanMemory, area: Box, y: AxisScale) -> None:
    """Draws the phases, the live tensors, and the peak with what comes on top of them."""
    profile, style = plan.profile, _STYLES[plan.role]
    live = profile.live_bytes
    x = AxisScale(0, len(live), area.left, area.right)
    for place, phase in enumerate(profile.phases):
        left, right = x(phase.start), x(phase.end)
        if place % 2:
            drawing.rect(left, area.top - 20, right, area.bottom, "af-band")
        if text_width(phase.name, SMALL) <= right - left - 4:
            drawing.text((left + right) / 2, area.top - 7, phase.name, "af-note", "middle")
    _stack(drawing, plan, area, x, y)
    drawing.polyline(_edge(live, area, x, y), f"af-line-{style}")
    drawing.line(area.left, area.bottom, area.right, area.bottom, "af-axis")
    top = max(live)
    more = profile.peak_bytes > 1.02 * top
    left, height = x(live.index(top) + 0.5), y(top)
    drawing.add("circle", class_=f"af-bar-{style}", cx=left, cy=height, r=3.5)
    text = f"{format_bytes(top)} live"
    is_right = left + 8 + text_width(text, SMALL) < area.right
    below = 16 if more else -6  # what comes on top of live tensors is drawn above them
    drawing.text(left + (8 if is_right else -8), height + below, text, "af-note", "" if is_right else "end")
    if more:
        at = y(profile.peak_bytes)
        drawing.line(area.left, at, area.right, at, "af-peak")
        text = f"peak {format_bytes(profile.peak_bytes)} with the allocator's cache and context"
        drawing.text(area.left + 6, at - 5, text, "af-note")


def _edge(sizes: Sequence[int], area: Box, x: AxisScale, y: AxisScale) -> list[tuple[float, float]]:
    """Returns the line of sizes over the step, from one end of the area to the other."""
    steps = [(x(place + 0.5), y(value)) for place, value in enumerate(sizes)]
    return [(area.left, steps[0][1]), *steps, (area.right, steps[-1][1])]


def _stack(drawing: Drawing, plan: PlanMemory, area: Box, x: AxisScale, y: AxisScale) -> None:
    """Fills the area below the line, kind by kind from the bottom; in one colour if the kinds are unknown."""
    kinds, live = plan.profile.kinds, plan.profile.live_bytes
    layers = [(f"af-k{place}", kinds[kind]) for place, kind in enumerate(_KINDS) if kind in kinds]
    below = (0,) * len(live)
    for style, sizes in layers or [(f"af-area-{_STYLES[plan.role]}", live)]:
        above = tuple(map(sum, zip(below, sizes, strict=True)))
        drawing.polyline([*_edge(above, area, x, y), *reversed(_edge(below, area, x, y))], style)
        below = above


def _step_about(report: Report) -> str:
    texts = ["Live tensors over one optimizer step, phase by phase."]
    for plan in _drawn(report):
        peak = max(plan.profile.live_bytes)
        place = plan.profile.live_bytes.index(peak)
        phase = next((each.name for each in plan.profile.phases if each.start <= place < each.end), "step")
        texts.append(f"{_NAMES[plan.role].capitalize()}: highest in the phase {phase}, {format_bytes(peak)}.")
    return " ".join(texts)


def traced_steps(report: Report) -> str:
    """Returns which plans have more accumulation steps than their trace shows; "" if none has."""
    texts = list[str]()
    for plan in _drawn(report):
        row = report.recommended if plan.role == "recommended" else report.baseline
        shown = sum(phase.name == "forward" for phase in plan.profile.phases)
        if row is not None and 0 < shown < row.accumulation_steps:
            texts.append(f"{shown} of the {row.accumulation_steps:,} accumulation steps of the {_NAMES[plan.role]}")
    return f"The timeline shows {' and '.join(texts)}; the others repeat the last one." if texts else ""


def _step_table(report: Report) -> DataTable:
    """Returns the highest and the last value of each phase."""
    rows = list[tuple[str, ...]]()
    for plan in _drawn(report):
        for phase in plan.profile.phases:
            if live := plan.profile.live_bytes[phase.start : phase.end]:
                name = _named(report, plan).capitalize()
                rows.append((name, phase.name, format_bytes(max(live)), format_bytes(live[-1])))
    return DataTable(("plan", "phase", "highest", "at its end"), tuple(rows))


TIMELINE: Chart = Chart(
    kind="timeline",
    heading="Memory during one optimizer step",
    aid="Live tensors at each allocation and release, in order; the horizontal axis is not time.",
    missing="the memory of the plans was not traced",
    available=lambda report: bool(_drawn(report)),
    draw=_step_draw,
    table=_step_table,
    note=lambda report: f"{traced_steps(report)} {_upper_bounds(report)}".strip(),
)
"""Live tensors over one optimizer step."""
