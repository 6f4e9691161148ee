"""The report as one HTML page: charts as SVG, its own style and script, and nothing from a network."""

from collections import Counter
from collections.abc import Callable, Iterator

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.strategy_record import Effect
from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.reports.frame import Frame, Section, asset, filled, page, script, style
from autofit.reports.markup import (
    LABEL,
    REASON,
    Markup,
    code_block,
    facts,
    joined,
    section,
    shortened,
)
from autofit.reports.report import PlanRow, Report
from autofit.reports.sentences import counted, doubt, interval_text, moment, runs, unknown_gain
from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import NARROW, WIDE

MOST_OPEN = 10
"""Number of combinations without a measurement that are shown at once; the others are folded."""


def render(report: Report) -> str:
    """Returns the page, complete and the same for the same report. Every text of the report is escaped."""
    sections = [*_charts(report), *_rest(report)]
    return page(_frame(report), ("answer", "The answer", answer(report)), sections)


def _frame(report: Report) -> Frame:
    device = f"{shortened(report.environment.device_name, 80)} ({shortened(report.environment.device_type, 20)})"
    version = shortened(report.environment.versions.get("autofit", ""), 40)
    made = f"Made by autofit {version}".rstrip()
    return Frame(
        window=f"{shortened(report.title, 80)} – autofit report",
        kind="autofit report",
        title=shortened(report.title, 160) or "untitled",
        about=[device, shortened(moment(report.created), 40), _trials(report)],
        footer=f"{made}. All throughputs are on one scale. This file is self-contained and needs no network.",
        style=style(),
        script=script(asset("plans.js")),
    )


def _trials(report: Report) -> str:
    counts = shortened(runs(report), LABEL)
    return f"{counts} in {format_duration(report.duration_s)}" if counts and report.duration_s else counts


def _charts(report: Report) -> list[Section]:
    """Returns each chart that the report has, drawn for a wide and for a narrow page."""
    found = list[Section]()
    for chart in CHARTS:
        if chart.available(report):
            wide, narrow = (chart.draw(report, form) for form in (WIDE, NARROW))
            figure = filled("report.jinja", "figure", chart, report, wide, narrow, chart.table(report))
            found.append((chart.kind, chart.heading, section(chart.kind, chart.heading, figure)))
    return found


def _rest(report: Report) -> list[Section]:
    """Returns the sections after the charts."""
    blocks = [("Apply the plan", report.apply_code), ("Repeat the search", report.command)]
    found = [
        ("plans", "All plans", plans_table(report)),
        ("caveats", "What to know", filled("report.jinja", "caveats", report)),
        ("gates", "Numerical checks", filled("report.jinja", "gates", report) if report.gates else Markup()),
        ("left-out", "What was left out, and why", filled("report.jinja", "left_out", report, MOST_OPEN)),
        ("environment", "Environment", _environment(report)),
        ("apply", "Apply and reproduce", joined(code_block(name, code) for name, code in blocks if code)),
    ]
    return [(anchor, heading, section(anchor, heading, inside)) for anchor, heading, inside in found if inside]


def _environment(report: Report) -> Markup:
    place = report.environment
    entries = [
        ("device", f"{shortened(place.device_name, 120)} ({shortened(place.device_type, 20)})"),
        ("device memory", format_bytes(place.capacity_bytes)),
        ("budget", shortened(report.budget_note, LABEL) or format_bytes(report.budget_bytes)),
        ("threads", "" if place.threads is None else str(place.threads)),
        *((shortened(name, 60), shortened(text, 120)) for name, text in place.versions.items()),
        *((shortened(name, 60).replace("_", " "), shortened(text, 120)) for name, text in place.settings.items()),
        ("workload signature", shortened(place.workload, 80)),
        ("search ended because", shortened(report.stopped, LABEL)),
        ("study", shortened(report.study, LABEL)),
        ("plan file", shortened(report.plan_file, LABEL)),
    ]
    return facts([(name, text) for name, text in entries if text])


Tile = tuple[str, ...]
"""A key figure: name, value, note and perhaps its kind; or a row of the comparison: name, before, after and change."""
_EFFECTS: dict[Effect, str] = {"changes the result": "changed", "rounding": "differ by rounding", "exact": "the same"}
"""What a plan does to the values that are trained, strongest first."""


def answer(report: Report) -> Markup:
    """Returns the headline, the key figures, and the recommended plan beside the baseline."""
    return filled("report.jinja", "answer", report, _tiles(report), _compared(report))


def _tiles(report: Report) -> list[Tile]:
    best, baseline = report.recommended, report.baseline
    found = list[Tile]()
    if best is not None:
        found += _answer_tiles(report, best, baseline)
    else:
        found.append(("Answer", "none", shortened(report.cause, LABEL) or "the cause is unknown", "bad"))
        found.append(("Memory budget", format_bytes(report.budget_bytes), _lightest(report)))
    note = runs(report) or "tried, skipped or refused"
    note = f"{note}, in {format_duration(report.duration_s)}" if report.duration_s else note
    return [*found, ("Search", counted(len(report.rows), "plan"), shortened(note, LABEL))]


def _lightest(report: Report) -> str:
    """Returns how much memory the lightest plan needs, as measured or as estimated."""
    measured = min((row.peak_bytes for row in report.rows if row.peak_bytes), default=None)
    if measured is not None:
        return f"the lightest plan that ran took {format_bytes(measured)}"
    estimated = min((row.expected_bytes for row in report.rows if row.expected_bytes is not None), default=None)
    return "no run was completed" if estimated is None else f"lowest estimated peak: {format_bytes(estimated)}"


def _answer_tiles(report: Report, best: PlanRow, baseline: PlanRow | None) -> list[Tile]:
    found = list[Tile]()
    if best.is_baseline:
        found.append(("Change", "none", "the baseline is the answer"))
    elif best.gain is None:
        absent = "the baseline was not measured within the budget"
        found.append(("Gain", "–", _proof(report).removeprefix("; ") or absent))
    else:
        raced, times = best.gain.pairs > 0, format_ratio(best.gain.value)
        note = f"{interval(best.gain)}{_proof(report)}"
        sure = "good" if raced and best.gain.low > 1 else ""
        found.append(("Gain", times if raced else f"≈ {times}", note, sure))
    if best.rate_per_s is not None:
        before = _before(baseline, lambda row: short_number(row.rate_per_s) if row.rate_per_s else None)
        found.append(("Throughput", f"{short_number(best.rate_per_s)}", f"{report.unit}/s{before}"))
    if best.peak_bytes is not None:
        before = _before(baseline, lambda row: format_bytes(row.peak_bytes) if row.peak_bytes else None)
        share = best.peak_bytes / report.budget_bytes if report.budget_bytes else 0.0
        used = f"{share:.0%}" if share >= 0.005 else "less than 1%"
        note = f"{used} of the budget, {format_bytes(report.budget_bytes)}{before}"
        found.append(("Peak memory", format_bytes(best.peak_bytes), note))
    size = report.global_batch_size
    batch = f"{best.micro_batch_size:,} × {best.accumulation_steps:,}"
    found.append(("Micro batch × steps", batch, f"global batch {size:,}" if size else "accumulation steps"))
    return found


def _proof(report: Report) -> str:
    """Returns the throughput of the proof where it contradicts the one that is shown."""
    rate = report.proof_rate_per_s
    return "" if rate is None else f"; the proof ran at {short_number(rate)} {report.unit}/s"


def _before(baseline: PlanRow | None, shown: Callable[[PlanRow], str | None]) -> str:
    text = None if baseline is None or baseline.role == "recommended" else shown(baseline)
    return f"; baseline {text}" if text else ""


def interval(gain: Ratio) -> str:
    """Returns where a ratio comes from: its interval and pairs, or that the plans did not race."""
    if not gain.pairs:
        return "over the baseline, not compared side by side"
    return f"over the baseline; 95\u00a0% interval {interval_text(gain)}"


def _compared(report: Report) -> list[Tile]:
    """Returns what the plan changes and what that costs, knob by knob: name, before, after and change of each."""
    best, baseline = report.recommended, report.baseline
    if best is None or baseline is None or best is baseline:
        return []
    knobs = _knobs(best, baseline)
    rows: list[Tile] = [
        (shortened(name, 80).replace("_", " "), _shown(name, baseline), _shown(name, best), "") for name in knobs
    ]
    sizes = [f"{row.samples_per_step:,}" for row in (baseline, best)]
    rows += [("samples per optimizer step", *sizes, "")] if sizes[0] != sizes[1] else []
    rows += [*_readings(report, baseline, best), *_phases(baseline, best)]
    effects = {each.effect for each in report.strategies}
    effect = next((_EFFECTS[name] for name in _EFFECTS if name in effects), "")
    return [*rows, ("training results", "unchanged", effect, "")] if effect else rows


def _phases(baseline: PlanRow, best: PlanRow) -> Iterator[Tile]:
    """Yields the time of each phase of a step that takes 1 % of it in either plan; nothing if it was not timed."""
    total_s = sum(best.phases_s.values())
    for name, after_s in best.phases_s.items():
        before_s = baseline.phases_s.get(name, 0.0)
        if max(after_s, before_s) >= 0.01 * total_s:
            before = format_duration(before_s) if baseline.phases_s else "–"
            yield f"one step: {shortened(name, 40)}", before, format_duration(after_s), ""


def _knobs(best: PlanRow, baseline: PlanRow) -> list[str]:
    names = [*best.values, *(name for name in baseline.values if name not in best.values)]
    return [name for name in names if best.values.get(name) != baseline.values.get(name)]


def _shown(name: str, row: PlanRow) -> str:
    value = row.values.get(name, "–")
    return shortened(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value), 80)


def _readings(report: Report, baseline: PlanRow, best: PlanRow) -> Iterator[Tile]:
    """Yields the rows of measured values."""
    if best.rate_per_s:
        before, change = baseline.status, ""
        if baseline.rate_per_s:
            before = f"{short_number(baseline.rate_per_s)} {report.unit}/s"
            change = _change(best.rate_per_s / baseline.rate_per_s)
        yield "throughput", before, f"{short_number(best.rate_per_s)} {report.unit}/s", change
    if baseline.peak_bytes and best.peak_bytes:
        texts = (format_bytes(baseline.peak_bytes), format_bytes(best.peak_bytes))
        yield "peak memory", *texts, _change(best.peak_bytes / baseline.peak_bytes)


def _change(ratio: float) -> str:
    return f"({ratio - 1:+.0%})" if ratio < 10 else f"({format_ratio(ratio)})"


_MANY, _CUT = 150, 140
"""Number of rows from which reasons are cut to fewer characters, so that the page stays below 500 kB."""
_LONG = 30
"""Number of rows from which the table scrolls inside the page, with its head in view."""
_COLUMNS = ("#", "Batch", "Plan", "Rate", "Gain", "Peak", "Estimated", "Status", "Took")


def plans_table(report: Report) -> Markup:
    """Returns the controls and the table of all plans, one row each, with the reason below the plan.

    Columns without any value are left out. The page's script sorts and filters; without one, the table is complete.
    """
    few, rows = len(report.rows) < _MANY, report.rows
    filled_columns = {
        "Rate": any(row.rate_per_s is not None for row in rows),
        "Gain": any(row.gain is not None for row in rows),
        "Peak": any(row.peak_bytes is not None for row in rows),
        "Estimated": any(row.estimate is not None for row in rows),
        "Took": any(row.duration_s for row in rows),
    }
    columns = [name for name in _COLUMNS if filled_columns.get(name, True)]
    most = {"label": LABEL if few else _CUT, "reason": REASON if few else _CUT}
    return filled(
        "report.jinja", "plans", report, columns, most, len(rows) >= _LONG, Counter(row.status for row in rows)
    )


_OTHERS = 3
"""Number of alternatives shown."""


def card(answer: Answer) -> str:
    """Returns the answer, the plans beside it and the caveats, without a style sheet, script or address.

    A notebook shows it in place of a text, in its own colours and fonts, light or dark.
    """
    r, baseline = answer, answer.baseline.plan
    kept = r.plan == baseline
    rate, words = _rate(r, r.rate_per_s, r.proof), describe_plan(r.plan, baseline)
    rows = [_card_row("recommended", words, None if kept else r.gain, rate, r.proof.memory.judged_bytes)]
    rows += [] if kept else [_candidate(r, "baseline", r.baseline)]
    rows += [_candidate(r, "alternative", one) for one in r.alternatives if one.plan != baseline][:_OTHERS]
    gain = f": {r.gain} of the baseline's throughput." if r.gain is not None else f": {unknown_gain(r)}."
    name = "Keep the baseline" if kept else "Recommended"
    return filled("report.jinja", "card", r, name, words, "." if kept else f"{gain}{doubt(r)}", rows)


def _candidate(r: Answer, name: str, one: Candidate) -> tuple[str, ...]:
    measurement = one.outcome.measurement if one.outcome.measured else None
    peak = None if measurement is None else measurement.memory.judged_bytes
    words = describe_plan(one.plan, r.baseline.plan)
    rate = None if measurement is None else _rate(r, one.rate_per_s, measurement)
    status = "not run" if one.outcome.status is Status.SKIPPED else one.outcome.status.value
    gain = None if one.plan == r.baseline.plan else one.gain
    return _card_row(name, words, gain, rate, peak, "" if one.outcome.measured else status)


def _rate(r: Answer, rate_per_s: float | None, measurement: Measurement) -> float | None:
    """Returns a throughput on the scale of the others, or as measured where the record has no such scale."""
    return rate_per_s if rate_per_s is not None or r.rate_per_s is not None else r.objective.score(measurement)


def _card_row(
    name: str, words: str, gain: Ratio | None, rate_per_s: float | None, peak_bytes: int | None, status: str = ""
) -> tuple[str, ...]:
    over = "" if gain is None else format_ratio(gain.value)
    rate = status or ("–" if rate_per_s is None else short_number(rate_per_s))
    # The space does not break, since the card has no style sheet.
    peak = format_bytes(peak_bytes).replace(" ", "\u00a0") if peak_bytes else "–"
    return name, shortened(words, LABEL), over, rate, peak
