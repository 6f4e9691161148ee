"""The report as one HTML page: charts as SVG, its own style and script, and nothing from a network."""

from collections.abc import Callable, Collection
from functools import cache
from importlib.resources import files

from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.recommendation import Candidate, Ratio, Recommendation
from autofit.core.strategy_record import Effect
from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.reports.frame import Frame, Section, page, script, style
from autofit.reports.markup import (
    CODE,
    LABEL,
    REASON,
    Child,
    Markup,
    breakable,
    bullets,
    code_block,
    data_table,
    element,
    facts,
    joined,
    scrolled,
    section,
    shortened,
    tile,
)
from autofit.reports.report import UPPER_BOUND, WHAT_EACH_DOES, PlanRow, Report
from autofit.reports.sentences import RATIOS, counted, doubt, interval_text, moment, runs, unknown_gain, verdict
from autofit.reports.summary import EVALUATION
from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import NARROW, WIDE, Chart

_VERDICTS = {"passed": "ok", "failed": "bad", "not checked": "none"}
"""Style of each result of a numerical check."""
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
        script=script(_plans_script()),
    )


@cache
def _plans_script() -> str:
    return files("autofit.reports").joinpath("assets", "plans.js").read_text(encoding="utf-8")


def _trials(report: Report) -> str:
    counts = shortened(runs(report), LABEL)
    return f"{counts} in {format_duration(report.duration_s)}" if counts and report.duration_s else counts


def _charts(report: Report) -> list[Section]:
    return [(chart.kind, chart.heading, _chart(report, chart)) for chart in CHARTS if chart.available(report)]


def _chart(report: Report, chart: Chart) -> Markup:
    """Returns a chart, drawn for a wide and for a narrow page, with how to read it and its values."""
    wide, narrow = (chart.draw(report, form) for form in (WIDE, NARROW))
    drawings = [
        element("div", wide.svg(), class_="wide"),
        element("div", narrow.svg(), class_="narrow"),
    ]
    aid = f"{chart.aid} {chart.note(report)}".rstrip()
    figure = element("figure", *drawings, data_kind=chart.kind)
    values = chart.table(report)
    if values is None:
        more = element("p", wide.about, " ", element("a", "All values are in the table of plans.", href="#plans"))
        more = element("div", more, class_="values")
    else:
        inside = data_table(values, f"{chart.heading}: values")
        more = element("details", element("summary", "Values as a table"), inside, class_="values")
    return section(chart.kind, chart.heading, element("p", aid, class_="aid"), figure, more)


def _rest(report: Report) -> list[Section]:
    """Returns the sections after the charts."""
    found: list[tuple[str, str, list[Child]]] = [("plans", "All plans", [plans_table(report)])]
    found.append(("caveats", "What to know", _caveats(report)))
    found.append(("gates", "Numerical checks", _gates(report)))
    found.append(("left-out", "What was left out, and why", _left_out(report)))
    found.append(("environment", "Environment", [_environment(report)]))
    found.append(("apply", "Apply and reproduce", _code(report)))
    return [(anchor, heading, section(anchor, heading, *inside)) for anchor, heading, inside in found if inside]


def _caveats(report: Report) -> list[Child]:
    notes = [shortened(text, 2 * REASON) for text in report.caveats]
    found: list[Child] = [bullets(notes)] if notes else []
    if report.missing:
        found.append(element("h3", "Not in this report"))
        found.append(bullets([shortened(text, 2 * REASON) for text in report.missing]))
    return found


def _gates(report: Report) -> list[Child]:
    rows = [
        element(
            "tr",
            element("th", shortened(gate.name, LABEL), scope="row"),
            element("td", verdict(gate), class_=f"st {_VERDICTS[verdict(gate)]}"),
            element("td", shortened(gate.reason, 2 * REASON)),
        )
        for gate in report.gates
    ]
    if not rows:
        return []
    aid = "Each technique was compared with the plain gradient of this model on one batch of its data."
    return [
        element("p", aid, class_="aid"),
        _table(("Technique", "Result", "What was found"), rows, "Numerical checks"),
    ]


def _table(head: tuple[str, ...], rows: list[Markup], name: str) -> Markup:
    heads = element("thead", element("tr", *(element("th", text, scope="col") for text in head)))
    caption = element("caption", name, class_="hidden")
    return scrolled(element("table", caption, heads, element("tbody", *rows), class_="stacked"), name)


def _left_out(report: Report) -> list[Child]:
    found = list[Child]()
    if report.left_out:
        rows = [
            element("tr", element("th", shortened(one.label, LABEL), scope="row"),
                    element("td", shortened(one.basis, 40)), element("td", shortened(one.reason, REASON)))
            for one in report.left_out
        ]  # fmt: skip
        name, head = "Combinations that were not measured", ("Closest plan", "Evidence", "Reason")
        found += [element("h3", name), _table(head, rows[:MOST_OPEN], name)]
        if rest := rows[MOST_OPEN:]:
            more = f"{len(rest):,} more"
            # A print opens it by the page's script; where no script runs, it says that rows are missing.
            note = element("span", ", folded: open this list on the page to print it", class_="paper")
            inside = _table(head, rest, f"{name}: {more}")
            found.append(element("details", element("summary", more, note), inside, class_="more"))
    if report.refused:
        rows = [
            element("tr", element("th", shortened(one.name, LABEL), scope="row"),
                    element("td", shortened(one.reason, REASON)))
            for one in report.refused
        ]  # fmt: skip
        name = "Techniques that were not searched"
        found += [element("h3", name), _table(("Technique or value", "Reason"), rows, name)]
    return found


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


def _code(report: Report) -> list[Child]:
    blocks = [("Apply the plan", report.apply_code), ("Repeat the search", report.command)]
    return [code_block(name, code) for name, code in blocks if code]


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


_MANY, _CUT = 150, 140
"""Number of rows from which reasons are cut to fewer characters, so that the page stays below 500 kB."""
_LONG = 30
"""Number of rows from which the table scrolls inside the page, with its head in view."""
_LARGER_IS_BETTER = ("Samples/s", "Tokens/s", "Gain")
"""Columns that the first click sorts by their largest values first."""
_STATUS = {"measured": "ok", "skipped": "none", "interrupted": "none"}


def plans_table(report: Report) -> Markup:
    """Returns the controls and the table of all plans, one row each, with the reason below the plan.

    Columns without any value are left out.
    """
    most = REASON if len(report.rows) < _MANY else _CUT
    columns = _columns(report)
    heads = element("tr", joined(_head(name, kind) for name, kind in columns.items()))
    body = joined(_plans_row(row, columns, most) for row in report.rows)
    caption = element("caption", "All plans, best first", class_="hidden")
    table = element("table", caption, element("thead", heads), element("tbody", body), id="plans-table")
    kind = "scroll plans" if len(report.rows) < _LONG else "scroll plans long"
    note = element("p", RATIOS, class_="aid") if report.race else None
    return joined([_controls(report), scrolled(table, "All plans", kind), note])


def _columns(report: Report) -> dict[str, str]:
    """Returns the columns that are shown, with how each sorts: as "number" or as "text"."""
    empty = {
        "Rate": all(row.rate_per_s is None for row in report.rows),
        "Gain": all(row.gain is None for row in report.rows),
        "Peak": all(row.peak_bytes is None for row in report.rows),
        "Estimated": all(row.estimate is None for row in report.rows),
        "Took": not any(row.duration_s for row in report.rows),
    }
    names = ("#", "Batch", "Plan", "Rate", "Gain", "Peak", "Estimated", "Status", "Took")
    shown = [f"{report.unit.capitalize()}/s" if name == "Rate" else name for name in names if not empty.get(name)]
    return {name: "text" if name in ("Plan", "Status") else "number" for name in shown}


def _head(name: str, kind: str) -> Markup:
    button = element("button", name, element("span", class_="arrow", aria_hidden="true"), type="button", disabled=True)
    paper = element("span", name, class_="paper")
    first = "descending" if name in _LARGER_IS_BETTER else None
    sorted_ = "ascending" if name == "#" else None
    return element("th", paper, button, scope="col", data_sort=kind, data_first=first, aria_sort=sorted_)


def _plans_row(row: PlanRow, columns: Collection[str], most: int) -> Markup:
    role = row.role or ("baseline" if row.is_baseline else "")
    badge = element("span", role, class_=f"badge {role}") if role else None
    label = shortened(row.combination, LABEL if most == REASON else _CUT)
    if row.is_baseline:
        label = "" if role == "baseline" else "baseline"
    plan = element("span", breakable(label), class_="plan")
    reason = element("div", shortened(row.reason, most), class_="why") if row.reason else None
    estimate = None if row.estimate is None else row.estimate.value_bytes
    rate = element("td", "–" if row.rate_per_s is None else short_number(row.rate_per_s))
    cells = {
        "#": element("td", str(row.rank)),
        "Batch": element("td", _batch(row)),
        "Plan": element("th", badge, Markup(" ") if badge else None, plan, reason, scope="row"),
        "Samples/s": rate,
        "Tokens/s": rate,
        "Gain": element("td", "–" if row.gain is None else format_ratio(row.gain.value)),
        "Peak": _cell(row.peak_bytes, "–" if row.peak_bytes is None else format_bytes(row.peak_bytes)),
        "Estimated": _cell(estimate, "–" if estimate is None else format_bytes(estimate), row.has_worst_case),
        "Status": _status(row),
        "Took": _cell(row.duration_s, format_duration(row.duration_s) if row.duration_s else "–"),
    }
    shown = (cell for name, cell in cells.items() if name in columns)
    return element("tr", *shown, id=f"p{row.rank}", class_=role or None)


def _batch(row: PlanRow) -> str:
    """Returns the micro batch size of a plan, times its accumulation steps if there are several."""
    steps = row.accumulation_steps
    return f"{row.micro_batch_size:,} × {steps:,}" if steps > 1 else f"{row.micro_batch_size:,}"


def _status(row: PlanRow) -> Markup:
    kind = f"st {_STATUS.get(row.status, 'bad')}"
    if row.earlier:
        return element("td", f"{row.status}, earlier search", class_=f"{kind} earlier", data_s=row.status)
    return element("td", row.status, class_=kind)


def _cell(value: float | None, text: str, is_bound: bool = False) -> Markup:
    """Returns a cell with the value that it is sorted by, which its text does not show."""
    bound = (" ", element("div", UPPER_BOUND, class_="why")) if is_bound else ()
    return element("td", text, *bound, data_v=None if value is None else f"{value:.15g}")


def _controls(report: Report) -> Markup:
    counts: dict[str, int] = {}
    for row in report.rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    options = [element("option", f"all ({len(report.rows):,})", value="")]
    options += [element("option", f"{status} ({count:,})", value=status) for status, count in counts.items()]
    text = element("input", type="search", id="filter", autocomplete="off", placeholder="bf16, micro batch 32 …")
    fields = [
        element("label", "Filter by text ", text),
        element("label", "Status ", element("select", joined(options), id="status")),
        element("output", counted(len(report.rows), "plan"), id="shown", role="status"),
    ]
    return element("div", *fields, class_="controls", hidden=True)


_OTHERS = 3
"""Number of alternatives shown."""


def card(recommendation: Recommendation) -> str:
    """Returns the answer, the plans beside it and the caveats, without a style sheet, script or address.

    It is drawn in the colours and fonts of the notebook, light or dark.
    """
    r = recommendation
    baseline = r.baseline.plan
    name = "Keep the baseline" if r.plan == baseline else "Recommended"
    headline = element("p", element("b", f"{name}: "), shortened(describe_plan(r.plan, baseline), LABEL), _gain(r))
    titles = ("", "Plan", "vs baseline", f"{r.objective.unit}/s", "Peak")
    heads = element("tr", *(element("th", text, scope="col") for text in titles))
    rate = _rate(r, r.rate_per_s, r.proof)
    gain = None if r.plan == baseline else r.gain
    rows = [_card_row("recommended", describe_plan(r.plan, baseline), gain, rate, r.proof.memory.judged_bytes)]
    rows += [_candidate(r, "baseline", r.baseline)] if r.plan != baseline else []
    rows += [_candidate(r, "alternative", one) for one in r.alternatives if one.plan != baseline][:_OTHERS]
    table = element("table", element("thead", heads), element("tbody", joined(rows)))
    budget = element("p", f"Memory budget: {_size(r.budget.memory_bytes)}.")
    notes = element("ul", joined(element("li", shortened(text, REASON)) for text in r.caveats))
    caveats = element("details", element("summary", _counted(len(r.caveats))), notes) if r.caveats else None
    return element("div", headline, table, budget, caveats)


def _gain(r: Recommendation) -> str:
    if r.plan == r.baseline.plan:
        return "."
    if r.gain is not None:
        return f": {r.gain} of the baseline's throughput.{doubt(r)}"
    return f": {unknown_gain(r)}.{doubt(r)}"


def _candidate(r: Recommendation, name: str, one: Candidate) -> Markup:
    measurement = one.outcome.measurement if one.outcome.measured else None
    peak = None if measurement is None else measurement.memory.judged_bytes
    words = describe_plan(one.plan, r.baseline.plan)
    rate = None if measurement is None else _rate(r, one.rate_per_s, measurement)
    status = "not run" if one.outcome.status is Status.SKIPPED else one.outcome.status.value
    gain = None if one.plan == r.baseline.plan else one.gain
    return _card_row(name, words, gain, rate, peak, "" if one.outcome.measured else status)


def _rate(r: Recommendation, rate_per_s: float | None, measurement: Measurement) -> float | None:
    """Returns a throughput on the scale of the others, or as measured where the record has no such scale."""
    if rate_per_s is not None or r.rate_per_s is not None:
        return rate_per_s
    return measurement.tokens_per_s if r.objective.unit == "tokens" else measurement.samples_per_s


def _card_row(
    name: str, words: str, gain: Ratio | None, rate_per_s: float | None, peak_bytes: int | None, status: str = ""
) -> Markup:
    over = "" if gain is None else format_ratio(gain.value)
    rate = status or ("–" if rate_per_s is None else short_number(rate_per_s))
    peak = _size(peak_bytes) if peak_bytes else "–"
    cells = (shortened(words, LABEL), over, rate, peak)
    return element("tr", element("th", name, scope="row"), *(element("td", text) for text in cells))


def _size(count: int) -> str:
    """Returns bytes with a space that does not break, since the card has no style sheet."""
    return format_bytes(count).replace(" ", "\u00a0")


def _counted(count: int) -> str:
    return f"{count} {'caveat' if count == 1 else 'caveats'}"
