"""Memory timeline: live tensors over one optimizer step, phase by phase."""

from collections.abc import Sequence

from autofit.core.units import format_bytes
from autofit.memory.profile import StepPhase
from autofit.memory.trace import Kind
from autofit.reports.report import UPPER_BOUND, PlanMemory, Report
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, fitted, text_width
from autofit.reports.svg.marks import LINE, bound_label, key, margin, shown_budget, upper_bounds
from autofit.reports.svg.scales import AxisScale, byte_ticks

_KINDS = tuple(
    kind.value
    for kind in (
        Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE, Kind.GRADIENT, Kind.BATCH, Kind.ACTIVATION, Kind.TEMPORARY,
        Kind.WORKSPACE,
    )
)  # fmt: skip
"""The kinds from the bottom of the stack. The style sheet has a colour for each, by its place."""
_NAMES = {"recommended": "Recommended", "baseline": "Baseline"}


def draw(report: Report, form: Format) -> Drawing:
    """Returns one panel for each plan, all with the same axis of memory."""
    plans = _drawn(report)
    drawing = Drawing(form, _about(report))
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


def _about(report: Report) -> str:
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


def table(report: Report) -> DataTable:
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
    draw=draw,
    table=table,
    note=lambda report: f"{traced_steps(report)} {upper_bounds(report)}".strip(),
)
"""Live tensors over one optimizer step."""
