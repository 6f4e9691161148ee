"""The beginning of the page: the answer, what it brings and what it costs."""

from collections.abc import Callable

from autofit.core.recommendation import Ratio
from autofit.core.strategy_record import Effect
from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.reports.counting import counted, interval_text, runs
from autofit.reports.evaluation import EVALUATION
from autofit.reports.html.parts import CODE, LABEL, breakable, scrolled, tile
from autofit.reports.markup import Child, Markup, element, joined, shortened
from autofit.reports.report import WHAT_EACH_DOES, PlanRow, Report

_EFFECTS: dict[Effect, str] = {"changes the result": "others", "rounding": "differ by rounding", "exact": "the same"}
"""What a plan does to the values that are trained, strongest first."""


def answer(report: Report) -> Markup:
    """Returns the headline, the key figures, and the recommended plan beside the baseline."""
    headline = element("p", breakable(shortened(report.headline, 2 * LABEL)), class_="headline")
    plan = element("p", breakable(shortened(report.chosen, 4 * LABEL)), class_="chosen") if report.chosen else None
    failure = element("p", shortened(report.failure, CODE), class_="failure") if report.failure else None
    tiles = element("div", joined(_tiles(report)), class_="tiles")
    parts = (headline, plan, _ways(report), failure, tiles, _comparison(report), _evaluation(report))
    return element("section", *parts, id="answer", aria_label="The answer")


def _ways(report: Report) -> Markup | None:
    """Returns links to what a reader needs next; None without a plan to apply."""
    if not report.apply_code or not report.feasible:
        return None
    ways = [("apply", "Apply the plan")]
    ways += [("gates", "Were the gradients checked?")] if report.gates else []
    ways += [("caveats", "What to know first")] if report.caveats else []
    links = (element("a", text, href=f"#{anchor}") for anchor, text in ways)
    return element("p", joined(links, " · "), class_="chosen ways")


def _evaluation(report: Report) -> Markup | None:
    """Returns the plan for evaluation between epochs, as a paragraph below the answer; None without one."""
    if not report.evaluation:
        return None
    text = f"{EVALUATION}: {' '.join(report.evaluation)}"
    return element("p", breakable(shortened(text, 4 * LABEL)), class_="aid")


def _tiles(report: Report) -> list[Markup]:
    best, baseline = report.recommended, report.baseline
    found = list[Markup]()
    if best is not None:
        found += _answer_tiles(report, best, baseline)
    else:
        found.append(tile("Recommendation", "none", shortened(report.cause, LABEL) or "the cause is unknown", "bad"))
        found.append(tile("Memory budget", format_bytes(report.budget_bytes), _lightest(report)))
    note = runs(report) or "tried, skipped or refused"
    note = f"{note}, in {format_duration(report.duration_s)}" if report.duration_s else note
    return [*found, tile("Search", counted(len(report.rows), "plan"), shortened(note, LABEL))]


def _lightest(report: Report) -> str:
    """Returns how much memory the lightest plan needs, as measured or as estimated."""
    measured = min((row.peak_bytes for row in report.rows if row.peak_bytes), default=None)
    if measured is not None:
        return f"the lightest plan that ran took {format_bytes(measured)}"
    estimated = min((row.expected_bytes for row in report.rows if row.expected_bytes is not None), default=None)
    return "no run was completed" if estimated is None else f"lowest estimated peak: {format_bytes(estimated)}"


def _answer_tiles(report: Report, best: PlanRow, baseline: PlanRow | None) -> list[Markup]:
    found = list[Markup]()
    if best.is_baseline:
        found.append(tile("Change", "none", "the baseline is the answer"))
    elif best.gain is None:
        absent = "the baseline was not measured within the budget"
        found.append(tile("Gain", "–", _proof(report).removeprefix("; ") or absent))
    else:
        raced, times = best.gain.pairs > 0, format_ratio(best.gain.value)
        note = f"{interval(best.gain)}{_proof(report)}"
        sure = "good" if raced and best.gain.low > 1 else ""
        found.append(tile("Gain", times if raced else f"≈ {times}", note, sure))
    if best.rate_per_s is not None:
        before = _before(baseline, lambda row: short_number(row.rate_per_s) if row.rate_per_s else None)
        found.append(tile("Throughput", f"{short_number(best.rate_per_s)}", f"{report.unit}/s{before}"))
    if best.peak_bytes is not None:
        before = _before(baseline, lambda row: format_bytes(row.peak_bytes) if row.peak_bytes else None)
        share = best.peak_bytes / report.budget_bytes if report.budget_bytes else 0.0
        used = f"{share:.0%}" if share >= 0.005 else "less than 1%"
        note = f"{used} of the budget, {format_bytes(report.budget_bytes)}{before}"
        found.append(tile("Peak memory", format_bytes(best.peak_bytes), note))
    size = report.global_batch_size
    batch = f"{best.micro_batch_size:,} × {best.accumulation_steps:,}"
    found.append(tile("Micro batch × steps", batch, f"global batch {size:,}" if size else "accumulation steps"))
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


def _comparison(report: Report) -> Markup | None:
    """Returns what the plan changes and what that costs, knob by knob; None if there is nothing to compare."""
    best, baseline = report.recommended, report.baseline
    if best is None or baseline is None or best is baseline:
        return None
    rows = [
        _compared(shortened(name, 80).replace("_", " "), _shown(name, baseline), _shown(name, best))
        for name in _knobs(best, baseline)
    ]
    sizes = [f"{row.samples_per_step:,}" for row in (baseline, best)]
    rows += [_compared("samples per optimizer step", *sizes)] if sizes[0] != sizes[1] else []
    rows += _readings(report, baseline, best)
    rows += _phases(baseline, best)
    if effect := _effect(report):
        rows.append(_compared("training results", "as they are", effect))
    head = element("tr", *(element("th", name, scope="col") for name in ("", "Baseline", "Recommended")))
    caption = element("caption", "What changes, and what it costs")
    table = element("table", caption, element("thead", head), element("tbody", joined(rows)), class_="compare")
    return joined([scrolled(table, "What changes, and what it costs"), *_strategies(report)])


def _phases(baseline: PlanRow, best: PlanRow) -> list[Markup]:
    """Returns the time of each phase of a step that takes 1 % of it in either plan; nothing if it was not timed."""
    if not best.phases_s:
        return []
    total_s, found = sum(best.phases_s.values()), list[Markup]()
    for name, after_s in best.phases_s.items():
        before_s = baseline.phases_s.get(name, 0.0)
        if max(after_s, before_s) >= 0.01 * total_s:
            before = format_duration(before_s) if baseline.phases_s else "–"
            found.append(_compared(f"one step: {shortened(name, 40)}", before, format_duration(after_s)))
    return found


def _effect(report: Report) -> str:
    """Returns what the strategies of the plan do to the values that are trained; "" if none says so."""
    effects = {each.effect for each in report.strategies}
    return next((_EFFECTS[name] for name in _EFFECTS if name in effects), "")


def _strategies(report: Report) -> list[Markup]:
    """Returns what each strategy of the plan does, as a list below the knobs."""
    if not report.strategies:
        return []
    items = (element("li", shortened(str(each), 2 * LABEL)) for each in report.strategies)
    return [element("ul", joined(items), class_="aid", aria_label=WHAT_EACH_DOES)]


def _knobs(best: PlanRow, baseline: PlanRow) -> list[str]:
    names = [*best.values, *(name for name in baseline.values if name not in best.values)]
    return [name for name in names if best.values.get(name) != baseline.values.get(name)]


def _shown(name: str, row: PlanRow) -> str:
    value = row.values.get(name, "–")
    return shortened(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value), 80)


def _compared(name: str, before: Child, after: Child, change: str = "") -> Markup:
    note = element("span", f" {change}") if change else None
    return element("tr", element("th", name, scope="row"), element("td", before), element("td", after, note))


def _readings(report: Report, baseline: PlanRow, best: PlanRow) -> list[Markup]:
    """Returns the rows of measured values."""
    found = list[Markup]()
    if baseline.rate_per_s and best.rate_per_s:
        texts = [f"{short_number(row.rate_per_s or 0.0)} {report.unit}/s" for row in (baseline, best)]
        found.append(_compared("throughput", texts[0], texts[1], _change(best.rate_per_s / baseline.rate_per_s)))
    elif best.rate_per_s:
        after = f"{short_number(best.rate_per_s)} {report.unit}/s"
        found.append(_compared("throughput", baseline.status, after))
    if baseline.peak_bytes and best.peak_bytes:
        texts = [format_bytes(row.peak_bytes) for row in (baseline, best)]
        found.append(_compared("peak memory", texts[0], texts[1], _change(best.peak_bytes / baseline.peak_bytes)))
    return found


def _change(ratio: float) -> str:
    return f"({ratio - 1:+.0%})" if ratio < 10 else f"({format_ratio(ratio)})"
