"""The report as one HTML page: charts as SVG, its own style and script, and nothing from a network."""

from collections import Counter
from collections.abc import Iterator

from autofit.core.answer import Answer, Candidate
from autofit.core.space import Effect
from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.reports import sections
from autofit.reports.alternatives import rate_text, recommended
from autofit.reports.frame import Section, filled, page
from autofit.reports.markup import LABEL, REASON, Markup, shortened
from autofit.reports.report import PlanRow, Report
from autofit.reports.sentences import counted, doubt, ending, interval_text, moment, runs, unknown_gain
from autofit.reports.svg import CHARTS

MOST_OPEN = 10
"""Number of combinations without a measurement that are shown at once; the others are folded."""


def render(report: Report) -> str:
    """Returns the page, complete and the same for the same report. Every text of the report is escaped."""
    charts = [
        (chart.kind, chart.heading, _part("figure", chart, drawing))
        for chart in CHARTS
        if (drawing := chart.draw(report, False)) is not None
    ]
    device = f"{shortened(report.environment.devices, 80)} ({shortened(report.environment.device_type, 20)})"
    made = f"Made by autofit {shortened(report.environment.versions.get('autofit', ''), 40)}".rstrip()
    return page(
        answer(report),
        [*charts, *_rest(report)],
        window=f"{shortened(report.title, 80)} – autofit report",
        kind="autofit report",
        title=shortened(report.title, 160) or "untitled",
        about=[device, shortened(moment(report.created), 40), shortened(runs(report), LABEL)],
        footer=f"{made}. All throughputs are on one scale. This file is self-contained and needs no network.",
        scripts=("plans.js",),
    )


def _rest(report: Report) -> list[Section]:
    """Returns the sections after the charts."""
    code = [each for each in (("Apply the plan", report.apply_code), ("Repeat the search", report.command)) if each[1]]
    found = [
        ("plans", "All plans", plans_table(report)),
        ("caveats", "What to know", _part("caveats", report)),
        ("gates", "Numerical checks", _part("gates", sections.gates(report)) if report.gates else ""),
        ("left-out", "What was left out, and why", _part("left_out", sections, report, MOST_OPEN)),
        ("environment", "Environment", filled("parts.jinja", "facts", sections.environment(report))),
        ("apply", "Apply and reproduce", _part("code", code)),
    ]
    return [(anchor, heading, Markup(inside)) for anchor, heading, inside in found if inside]


def _part(macro: str, *values: object) -> Markup:
    return filled("report.jinja", macro, *values)


Tile = tuple[str, ...]
"""A key figure: name, value, note and perhaps its kind; or a row of the comparison: name, before, after and change."""
_EFFECTS: dict[Effect, str] = {"changes the result": "changed", "rounding": "differ by rounding", "exact": "the same"}
"""What a plan does to the values that are trained, strongest first."""


def answer(report: Report) -> Markup:
    """Returns the headline, the key figures, and the recommended plan beside the baseline."""
    return _part("answer", report, _tiles(report), _compared(report))


def _tiles(report: Report) -> list[Tile]:
    best = report.recommended
    if best is not None:
        found = [_gain_tile(report, best), *_answer_tiles(report, best)]
    else:
        cause = shortened(report.cause, LABEL) or "the cause is unknown"
        budget = format_bytes(report.budget_bytes)
        found = [("Answer", "none", cause, "bad"), ("Memory budget", budget, _lightest(report))]
    trials = shortened(runs(report), LABEL) or "tried, skipped or refused"
    return [*found, ("Search", counted(len(report.rows), "plan"), trials)]


def _lightest(report: Report) -> str:
    """Returns how much memory the lightest plan needs, as measured or as estimated."""
    if measured := [row.peak_bytes for row in report.rows if row.peak_bytes]:
        return f"the lightest plan that ran took {format_bytes(min(measured))}"
    estimated = [row.expected_bytes for row in report.rows if row.expected_bytes is not None]
    return f"lowest estimated peak: {format_bytes(min(estimated))}" if estimated else "no run was completed"


def _gain_tile(report: Report, best: PlanRow) -> Tile:
    rate = report.proof_rate_per_s
    proof = "" if rate is None else f"the proof ran at {short_number(rate)} {report.unit}/s"
    if best.is_baseline:
        return "Change", "none", "the baseline is the answer"
    if best.gain is None:
        return "Gain", "–", proof or "the baseline was not measured within the budget"
    times, rest = format_ratio(best.gain.value), f"; {proof}" if proof else ""
    if not best.gain.pairs:
        return "Gain", f"≈ {times}", f"over the baseline, not compared side by side{rest}"
    note = f"over the baseline; 95\u00a0% interval {interval_text(best.gain)}{rest}"
    return "Gain", times, note, "good" if best.gain.low > 1 else ""


def _answer_tiles(report: Report, best: PlanRow) -> Iterator[Tile]:
    before = None if best.is_baseline else report.baseline
    if best.rate_per_s is not None:
        old = f"; baseline {short_number(before.rate_per_s)}" if before is not None and before.rate_per_s else ""
        yield "Throughput", short_number(best.rate_per_s), f"{report.unit}/s{old}"
    if best.peak_bytes is not None:
        old = f"; baseline {format_bytes(before.peak_bytes)}" if before is not None and before.peak_bytes else ""
        share = best.peak_bytes / report.budget_bytes if report.budget_bytes else 0.0
        used = f"{share:.0%}" if share >= 0.005 else "less than 1%"
        note = f"{used} of the budget, {format_bytes(report.budget_bytes)}{old}"
        yield "Peak memory", format_bytes(best.peak_bytes), note
    size = report.global_batch_size
    batch = f"{best.micro_batch_size:,} × {best.accumulation_steps:,}"
    yield "Micro batch × steps", batch, f"global batch {size:,}" if size else "accumulation steps"


def _compared(report: Report) -> list[Tile]:
    """Returns what the plan changes and what that costs, knob by knob: name, before, after and change of each."""
    best, baseline = report.recommended, report.baseline
    if best is None or baseline is None or best is baseline:
        return []
    rows: list[Tile] = [
        (shortened(name, 80).replace("_", " "), _shown(name, baseline), _shown(name, best), "")
        for name in dict.fromkeys((*best.values, *baseline.values))
        if best.values.get(name) != baseline.values.get(name)
    ]
    sizes = [f"{row.micro_batch_size * row.accumulation_steps:,}" for row in (baseline, best)]
    rows += [("samples per optimizer step", *sizes, "")] if sizes[0] != sizes[1] else []
    rows += _readings(report, baseline, best)
    effects = [_EFFECTS[name] for name in _EFFECTS if any(each.effect == name for each in report.strategies)]
    return [*rows, ("training results", "unchanged", effects[0], "")] if effects else rows


def _shown(name: str, row: PlanRow) -> str:
    value = row.values.get(name, "–")
    return shortened(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value), 80)


def _readings(report: Report, baseline: PlanRow, best: PlanRow) -> Iterator[Tile]:
    """Yields throughput, peak, and the time of each phase that takes 1 % of a step in either plan."""
    if best.rate_per_s:
        before, change = baseline.status, ""
        if baseline.rate_per_s:
            before = f"{short_number(baseline.rate_per_s)} {report.unit}/s"
            change = _change(best.rate_per_s / baseline.rate_per_s)
        yield "throughput", before, f"{short_number(best.rate_per_s)} {report.unit}/s", change
    if baseline.peak_bytes and best.peak_bytes:
        texts = (format_bytes(baseline.peak_bytes), format_bytes(best.peak_bytes))
        yield "peak memory", *texts, _change(best.peak_bytes / baseline.peak_bytes)
    total_s = sum(best.phases_s.values())
    for name, after_s in best.phases_s.items():
        before_s = baseline.phases_s.get(name, 0.0)
        if max(after_s, before_s) >= 0.01 * total_s:
            before = format_duration(before_s) if baseline.phases_s else "–"
            yield f"one step: {shortened(name, 40)}", before, format_duration(after_s), ""


def _change(ratio: float) -> str:
    return f"({ratio - 1:+.0%})" if ratio < 10 else f"({format_ratio(ratio)})"


_MANY, _CUT = 150, 140
"""Number of rows from which reasons are cut to fewer characters, so that the page stays below 500 kB."""
_LONG = 30
"""Number of rows from which the table scrolls inside the page, with its head in view."""


def plans_table(report: Report) -> Markup:
    """Returns the controls and the table of all plans, one row each, with the reason below the plan.

    Columns without any value are left out. The page's script sorts and filters; without one, the table is complete.
    """
    rows = report.rows
    columns = {
        "#": True,
        "Batch": True,
        "Plan": True,
        "Rate": any(row.rate_per_s is not None for row in rows),
        "Gain": any(row.gain is not None for row in rows),
        "Peak": any(row.peak_bytes is not None for row in rows),
        "Estimated": any(row.estimate is not None for row in rows),
        "Status": True,
        "Took": any(row.duration_s for row in rows),
    }
    most = {"label": LABEL, "reason": REASON} if len(rows) < _MANY else {"label": _CUT, "reason": _CUT}
    shown = [name for name, is_filled in columns.items() if is_filled]
    return _part("plans", report, shown, most, len(rows) >= _LONG, Counter(row.status for row in rows))


_OTHERS = 3
"""Number of alternatives shown."""


def card(answer: Answer) -> str:
    """Returns the answer, the plans beside it and the caveats, without a style sheet, script or address.

    A notebook shows it in place of a text, in its own colours and fonts, light or dark.
    """
    r, baseline = answer, answer.baseline.plan
    rows = [_card_row(r, "recommended", recommended(r))]
    rows += [] if r.plan == baseline else [_card_row(r, "baseline", r.baseline)]
    rows += [_card_row(r, "alternative", one) for one in r.alternatives if one.plan != baseline][:_OTHERS]
    gain = f"{r.gain} of the baseline's throughput" if r.gain is not None else unknown_gain(r)
    name, rest = ("Keep the baseline", ".") if r.plan == baseline else ("Recommended", f": {gain}.{doubt(r)}")
    return _part("card", r, name, describe_plan(r.plan, baseline), rest, rows)


def _card_row(r: Answer, name: str, one: Candidate) -> tuple[str, ...]:
    measurement = one.outcome.measurement if one.outcome.measured else None
    over = "" if one.gain is None or one.plan == r.baseline.plan else format_ratio(one.gain.value)
    rate, peak = ending(one.outcome), "–"
    if measurement is not None:
        rate = rate_text(r, one) or "–"
        peak = format_bytes(measurement.memory.judged_bytes) if measurement.memory.judged_bytes else peak
    # The space does not break, since the card has no style sheet.
    return name, shortened(describe_plan(one.plan, r.baseline.plan), LABEL), over, rate, peak.replace(" ", "\u00a0")
