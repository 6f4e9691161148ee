"""Charts of memory: what makes up the peak, and live tensors over a step."""

from collections.abc import Sequence

from autofit.core.units import format_bytes
from autofit.memory.breakdown import Part
from autofit.memory.profile import Profile
from autofit.memory.trace import Kind
from autofit.reports.markup import DataTable
from autofit.reports.report import UPPER_BOUND, PlanMemory, Report
from autofit.reports.svg.axes import LINE, AxisScale, byte_ticks, key, levels, margin, shown_budget
from autofit.reports.svg.drawing import FONT, SMALL, WIDTH, Box, Chart, Drawing, fitted, text_width

MOST_MODULES = 8
"""Number of modules shown by name; the others are one entry."""
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


def _breakdown(report: Report, titles: bool) -> Drawing | None:
    if not report.memory:
        return None
    parts = [plan.profile.breakdown for plan in report.memory]
    sums = tuple(sum(part.size_bytes for part in each.kinds) for each in parts)
    total, kinds = ("Peak, as traced", sums), _matched([each.kinds for each in parts])
    modules = _fewer(_matched([each.modules for each in parts]))
    names = [_named(report, plan) for plan in report.memory]
    listed = [*kinds, *((f"module {name}", sizes) for name, sizes in modules)]
    rows = tuple((name, *map(format_bytes, sizes)) for name, sizes in listed)
    table = DataTable(("part of the peak", *names), rows)
    drawing = Drawing(_breakdown_about(report, sums), titles, _upper_bounds(report), table)
    shapes = [f"af-bar-{_STYLES[plan.role]}" for plan in report.memory]
    y = key(drawing, list(zip(shapes, names, strict=True))) + 20
    entries = [total, *kinds, *modules]
    room = max(text_width(format_bytes(size), SMALL) for _, sizes in entries for size in sizes) + 10
    left = min(max(text_width(name, FONT) for name, _ in entries), 280) + 14
    high = float(max(sums)) or 1.0
    with_budget = shown_budget(report, high)
    x = AxisScale(0.0, max(high, report.budget_bytes) if with_budget else high, left, WIDTH - room)
    if with_budget:  # drawn first: the sizes stay readable where they cross the line
        at = x(report.budget_bytes)
        drawing.line(at, y - 2, at, y + len(report.memory) * (_BAR + _GAP) + 3, "af-budget")
        drawing.text(at, y - 8, f"budget {format_bytes(report.budget_bytes)}", "af-bad", "end")
    y = _entries(drawing, shapes, [total], x, y)
    y = _entries(drawing, shapes, kinds, x, y, "By kind")
    drawing.height = _entries(drawing, shapes, modules, x, y, "Activations and temporaries by module") if modules else y
    return drawing


def _entries(
    drawing: Drawing, styles: Sequence[str], entries: Sequence[Entry], x: AxisScale, y: float, title: str = ""
) -> float:
    """Draws one bar for each plan and entry, below a title if there is one; returns where they end."""
    if title:
        drawing.line(0, y + 2, WIDTH, y + 2, "af-grid")
        drawing.text(0, y + 24, title, "af-strong")
        y += 36
    for name, sizes in entries:
        middle = y + (len(sizes) * (_BAR + _GAP) - _GAP) / 2
        drawing.text(0, middle + 4.5, fitted(name, FONT, x.start - 10))
        for style, size in zip(styles, sizes, strict=True):
            end = x(size)
            if size:
                drawing.rect(x.start, y, max(end, x.start + 1), y + _BAR, style, 2)
            drawing.text(end + 6, y + 11, format_bytes(size) if size else "none", "af-note")
            y += _BAR + _GAP
        y += 9
    return y


def _matched(plans: Sequence[Sequence[Part]]) -> list[Entry]:
    """Returns the parts of all plans by name, largest first."""
    counts = {part.name: part.count for parts in plans for part in parts}
    sizes = [{part.name: part.size_bytes for part in parts} for parts in plans]
    entries = [(name, tuple(of.get(name, 0) for of in sizes)) for name in counts]
    entries.sort(key=lambda entry: (-max(entry[1]), entry[0]))
    return [(f"{name} × {counts[name]}" if counts[name] > 1 else name, found) for name, found in entries]


def _fewer(modules: list[Entry]) -> list[Entry]:
    """Returns the largest modules, and the others together."""
    if len(rest := modules[MOST_MODULES:]) < 2:
        return modules
    others = tuple(map(sum, zip(*(sizes for _, sizes in rest), strict=True)))
    return [*modules[:MOST_MODULES], (f"{len(rest)} other modules", others)]


def _breakdown_about(report: Report, sums: Sequence[int]) -> str:
    texts = ["Memory at the peak by kind of tensor and by module."]
    for plan, total in zip(report.memory, sums, strict=True):
        largest = max(plan.profile.breakdown.kinds, key=lambda part: part.size_bytes, default=None)
        part = f", most of it {largest.name}" if largest is not None and largest.size_bytes > total / 2 else ""
        texts.append(f"{_NAMES[plan.role].capitalize()}: {format_bytes(total)}{part}.")
    return " ".join(texts)


BREAKDOWN: Chart = Chart(
    kind="breakdown",
    heading="What the memory holds",
    aid="All bars share one scale. They show the moment at which memory peaks.",
    missing="the memory of the plans was not traced",
    draw=_breakdown,
)


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
_IN_ORDER = "allocations and releases of the step, in order →"
"""Name of the horizontal axis of a step."""


def _area(
    drawing: Drawing, high: float, top: float, height: float = _PANEL, most_ticks: int = 4
) -> tuple[Box, AxisScale]:
    """Draws the levels of memory up to `high`; returns the area below `top`, and its vertical scale."""
    ticks = byte_ticks(0, high, most_ticks)
    area = Box(margin(ticks), top, WIDTH - 8, top + height)
    scale = AxisScale(0, high, area.bottom, area.top)
    levels(drawing, area, scale, ticks)
    return area, scale


def _timeline(report: Report, titles: bool) -> Drawing | None:
    """Returns one panel for each plan, all with the same axis of memory."""
    plans = [plan for plan in report.memory if plan.profile.live_bytes]
    if not plans:
        return None
    note = f"{_untraced_steps(report, plans)} {_upper_bounds(report)}".strip()
    drawing = Drawing(_timeline_about(plans), titles, note, _timeline_table(report, plans))
    peak = max(max(*plan.profile.live_bytes, plan.profile.peak_bytes) for plan in plans)
    with_budget = shown_budget(report, peak)
    high = max(1.2 * peak, 1.08 * report.budget_bytes if with_budget else 0.0)  # the peak has its label above it
    held = {kind for plan in plans for kind in plan.profile.kinds}
    keys = [(f"af-bar af-k{place}", kind) for place, kind in enumerate(_KINDS) if kind in held]
    y = key(drawing, keys) + 6 if keys else 0.0
    for plan in plans:
        area, scale = _area(drawing, high, y + 52)
        _title(drawing, _named(report, plan).capitalize(), plan.label, y + 16)
        if with_budget:  # drawn first: the peak stays readable where it crosses the line
            _budget(drawing, report.budget_bytes, area, scale)
        _panel(drawing, plan.profile, _STYLES[plan.role], area, scale)
        y = area.bottom + 26
    drawing.text(WIDTH - 8, y - 4, _IN_ORDER, "af-note", "end")
    if not with_budget:
        drawing.text(0, y + 16, f"The budget of {format_bytes(report.budget_bytes)} is beyond this axis.", "af-bad")
        y += 22
    drawing.height = y + 6
    return drawing


def _budget(drawing: Drawing, budget_bytes: int, area: Box, y: AxisScale) -> None:
    at = y(budget_bytes)
    drawing.line(area.left, at, area.right, at, "af-budget")
    label_at = at + 14 if at - area.top < LINE else at - 6  # phases are named above
    drawing.text(area.right - 6, label_at, f"budget {format_bytes(budget_bytes)}", "af-bad", "end")


def _title(drawing: Drawing, name: str, label: str, y: float) -> None:
    left = text_width(name, FONT) * 1.1 + 8
    drawing.text(0, y, name, "af-strong")
    drawing.text(left, y, fitted(label, SMALL, WIDTH - left), "af-note")


def step_chart(profile: Profile, unread: Sequence[int]) -> Drawing:
    """Returns the memory of one step by kind; `unread` is the part of each point that nothing reads again."""
    phases = ", ".join(phase.name for phase in profile.phases)
    drawing = Drawing(
        f"Live tensors over one step ({phases}), by kind. The peak is {format_bytes(profile.peak_bytes)}."
    )
    high = 1.2 * max(*profile.live_bytes, profile.peak_bytes, 1)
    keys = [(f"af-bar af-k{place}", kind) for place, kind in enumerate(_KINDS) if kind in profile.kinds]
    y = key(drawing, [*keys, ("af-bar af-unread", "never read again")]) + 6
    area, scale = _area(drawing, high, y + 22)
    _panel(drawing, profile, "rec", area, scale, unread)
    drawing.text(WIDTH - 8, area.bottom + 18, _IN_ORDER, "af-note", "end")
    drawing.height = area.bottom + 28
    drawing.table = DataTable(
        ("phase", "highest", "at its end", "never read again, at most"),
        tuple(
            (phase.name, *map(format_bytes, (max(live), live[-1], max(unread[phase.start : phase.end]))))
            for phase in profile.phases
            if (live := profile.live_bytes[phase.start : phase.end])
        ),
    )
    return drawing


def growth_chart(sizes: Sequence[int]) -> Drawing:
    """Returns the live bytes at the end of each of some steps, as bars."""
    drawing = Drawing(f"Live tensors at the end of each of {len(sizes)} steps.")
    high = 1.15 * max(*sizes, 1)
    area, scale = _area(drawing, high, 14, _PANEL / 2, 3)
    width = (area.right - area.left) / len(sizes)
    for place, size in enumerate(sizes):
        left = area.left + place * width
        drawing.rect(left + 0.2 * width, scale(size), left + 0.8 * width, area.bottom, "af-bar-rec", 2)
        drawing.text(left + width / 2, scale(size) - 5, format_bytes(size), "af-note", "middle")
        drawing.text(left + width / 2, area.bottom + 18, f"step {place + 1}", "af-note", "middle")
    drawing.line(area.left, area.bottom, area.right, area.bottom, "af-axis")
    drawing.height = area.bottom + 28
    rows = tuple((f"step {place}", format_bytes(size)) for place, size in enumerate(sizes, 1))
    drawing.table = DataTable(("end of", "live tensors"), rows)
    return drawing


def _panel(drawing: Drawing, profile: Profile, style: str, area: Box, y: AxisScale, unread: Sequence[int] = ()) -> None:
    """Draws the phases, the live tensors, and the peak with what comes on top of them."""
    live = profile.live_bytes
    x = AxisScale(0, len(live), area.left, area.right)
    for place, phase in enumerate(profile.phases):
        left, right = x(phase.start), x(phase.end)
        if place % 2:
            drawing.rect(left, area.top - 20, right, area.bottom, "af-band")
        if text_width(phase.name, SMALL) <= right - left - 4:
            drawing.text((left + right) / 2, area.top - 7, phase.name, "af-note", "middle")
    _stack(drawing, profile, style, area, x, y)
    if any(unread):
        read = [size - dead for size, dead in zip(live, unread, strict=True)]
        drawing.polyline([*_edge(live, area, x, y), *reversed(_edge(read, area, x, y))], "af-unread")
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


def _stack(drawing: Drawing, profile: Profile, style: str, area: Box, x: AxisScale, y: AxisScale) -> None:
    """Fills the area below the line, kind by kind from the bottom; in one colour if the kinds are unknown."""
    kinds, live = profile.kinds, profile.live_bytes
    layers = [(f"af-k{place}", kinds[kind]) for place, kind in enumerate(_KINDS) if kind in kinds]
    below = (0,) * len(live)
    for layer, sizes in layers or [(f"af-area-{style}", live)]:
        above = tuple(map(sum, zip(below, sizes, strict=True)))
        drawing.polyline([*_edge(above, area, x, y), *reversed(_edge(below, area, x, y))], layer)
        below = above


def _timeline_about(plans: Sequence[PlanMemory]) -> str:
    texts = ["Live tensors over one optimizer step, phase by phase."]
    for plan in plans:
        peak = max(plan.profile.live_bytes)
        place = plan.profile.live_bytes.index(peak)
        phase = next((each.name for each in plan.profile.phases if each.start <= place < each.end), "step")
        texts.append(f"{_NAMES[plan.role].capitalize()}: highest in the phase {phase}, {format_bytes(peak)}.")
    return " ".join(texts)


def _untraced_steps(report: Report, plans: Sequence[PlanMemory]) -> str:
    """Returns which plans have more accumulation steps than their trace shows; "" if none has."""
    texts = list[str]()
    for plan in plans:
        row = report.row_of(plan.role)
        shown = sum(phase.name == "forward" for phase in plan.profile.phases)
        if row is not None and 0 < shown < row.accumulation_steps:
            texts.append(f"{shown} of the {row.accumulation_steps:,} accumulation steps of the {_NAMES[plan.role]}")
    return f"The timeline shows {' and '.join(texts)}; the others repeat the last one." if texts else ""


def _timeline_table(report: Report, plans: Sequence[PlanMemory]) -> DataTable:
    """Returns the highest and the last value of each phase."""
    rows = tuple(
        (_named(report, plan).capitalize(), phase.name, format_bytes(max(live)), format_bytes(live[-1]))
        for plan in plans
        for phase in plan.profile.phases
        if (live := plan.profile.live_bytes[phase.start : phase.end])
    )
    return DataTable(("plan", "phase", "highest", "at its end"), rows)


TIMELINE: Chart = Chart(
    kind="timeline",
    heading="Memory during one optimizer step",
    aid="Live tensors at each allocation and release, in order; the horizontal axis is not time.",
    missing="the memory of the plans was not traced",
    draw=_timeline,
)
