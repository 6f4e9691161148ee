"""A night as text for a terminal, as Markdown, as JSON with a published schema, and as a page with all nights."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from typing import Any

from jinja2 import Environment, StrictUndefined

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import printable
from autofit.core.units import format_bytes, short_number
from autofit.core.wording import describe_plan
from autofit.nightly.records import NOT_MEASURED, NightRecord, NightResult, VerdictKind
from autofit.nightly.verdict import rate_text
from autofit.reports.canvas import Canvas
from autofit.reports.markdown import MARK
from autofit.reports.markdown import table as markdown_table
from autofit.reports.markdown import text as escaped
from autofit.reports.markup import asset, printed, shortened
from autofit.reports.sentences import counted, difference, instant
from autofit.reports.svg.axes import AxisScale, axes, margin, rate_ticks, span
from autofit.reports.svg.drawing import WIDTH, Box, Drawing
from autofit.reports.tables import Column
from autofit.reports.tables import table as text_table
from autofit.terminal import wrapped

History = Mapping[str, Sequence[NightRecord]]
"""All records of each job, oldest first."""
MOST_LETTERS = 60_000
"""Maximum length of the Markdown: a comment on GitHub has at most 65,536 characters."""
URGENCY = {
    VerdictKind.REGRESSION: ("regression", "regressions"),
    VerdictKind.DOES_NOT_FIT: ("does not fit", "do not fit"),
    VerdictKind.ERROR: ("failed", "failed"),
    VerdictKind.CANNOT_COMPARE: ("cannot be compared", "cannot be compared"),
    VerdictKind.FASTER: ("faster", "faster"),
    VerdictKind.STEADY: ("steady", "steady"),
}
"""Verdicts in the order in which they are shown, each with its name for one job and for several."""
ATTENTION = (VerdictKind.REGRESSION, *NOT_MEASURED)
"""Verdicts that somebody should look at."""
_NAME, _VALUE, _REASON, _MOST_ITEMS, _MOST_JOBS = 40, 300, 400, 10, 100


def to_text(night: NightResult, history: History, canvas: Canvas | None = None) -> str:
    """Returns a night for a person to read, ending without a newline."""
    canvas = canvas or Canvas()
    urgent = any(record.verdict.kind in ATTENTION for record in night.records)
    head = [canvas.paint(line, "bad" if urgent else "good") for line in wrapped(headline(night), canvas.width)]
    about = f"Night of {shortened(moment(night.night), _NAME)}, exit code {night.exit_code}."
    others = f"Others: {found}. " if (found := other_counts(night)) else ""
    parts = [[*head, *wrapped(f"{others}{about}", canvas.width)]]
    if night.records:
        names, *cells = zip(*map(_row, by_urgency(night.records)), strict=True)
        columns = [Column("Jobs", names), Column("verdict", cells[0])]
        columns += [Column(title, texts, right=True) for title, texts in zip(_HEAD[2:], cells[1:], strict=True)]
        first, *rows = text_table(columns, canvas.width)
        parts.append([canvas.paint(first, "title"), *rows])
    for title, reason, items in _sections(night, history):
        bad = any(title.endswith(f": {kind.value}") for kind in ATTENTION)
        lines = [canvas.paint(title, "bad" if bad else "title")]
        lines += wrapped(f"{shortened(reason, _REASON)}.", canvas.width, "  ", "  ") if reason else []
        for item in items:
            lines += wrapped(shortened(item, _VALUE), canvas.width, "  - ", "    ")
        parts.append(lines)
    return "\n\n".join("\n".join(lines) for lines in parts)


def to_markdown(night: NightResult, history: History) -> str:
    """Returns a night for a job summary, a comment or a message. Text from the user's code is never read as markup."""
    others = f"Others: {counts}. " if (counts := other_counts(night)) else ""
    lines = [MARK, f"# autofit nightly: {escaped(moment(night.night), 60)}", "", f"**{headline(night)}**", ""]
    lines += [f"{others}Exit code {night.exit_code}.", ""]
    if night.records:
        rows = [[escaped(cell, 80) for cell in _row(record)] for record in by_urgency(night.records)]
        lines += markdown_table(_HEAD, rows, "jobs", _MOST_JOBS)
    lines += [line for section in _sections(night, history) for line in _markdown_section(*section, "##")]
    return _document(lines)


def markdown_of_job(record: NightRecord, past: Sequence[NightRecord]) -> str:
    """Returns the result of one job as Markdown, for a command that is notified of it."""
    section = _job_section(record, (*past, record))
    return _document([MARK, *_markdown_section(*section, "#"), f"Night of {escaped(moment(record.night), 60)}."])


def to_json(night: NightResult) -> str:
    """Returns a night as JSON text, as the published schema describes it.

    Numbers that JSON does not have are null, and unpaired surrogates are "?".
    """
    text = json.dumps(night.model_dump(mode="json", by_alias=True))
    document = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="replace").decode() + "\n"


def by_urgency(records: Sequence[NightRecord]) -> list[NightRecord]:
    """Returns records, sorted so that those that somebody should look at come first."""
    return sorted(records, key=lambda record: list(URGENCY).index(record.verdict.kind))


def headline(night: NightResult) -> str:
    """Returns in one sentence what somebody should look at."""
    total = len(night.records) + len(night.unchecked)
    urgent = [record for record in night.records if record.verdict.kind in ATTENTION]
    problems = [f"{counted(len(night.problems), 'error')} in the jobs file"] if night.problems else []
    if urgent:
        start = "The job needs" if total == 1 else f"{len(urgent):,} of {total:,} jobs need{'s' * (len(urgent) == 1)}"
        return f"{start} attention: {', '.join([*_counts(urgent), *problems])}."
    start = "The job needs no attention" if total == 1 else f"None of {total:,} jobs needs attention"
    if unknown := sum(record.verdict.kind is VerdictKind.CANNOT_COMPARE for record in night.records):
        several = f"no job is known to need attention, and {unknown:,} of {total:,} cannot be compared"
        start = "The job cannot be compared" if total == 1 else several.capitalize()
    return f"{'; '.join([start if night.records else 'No job was checked', *problems])}."


def other_counts(night: NightResult) -> str:
    """Returns how many jobs have the verdicts that the headline does not name; "" if there is none."""
    counts = _counts([record for record in night.records if record.verdict.kind not in ATTENTION])
    return ", ".join([*counts, *([f"{len(night.unchecked):,} not checked"] if night.unchecked else [])])


def of_the_night(night: NightResult) -> dict[str, Sequence[str]]:
    """Returns what concerns the whole night, by title; titles without a text are left out."""
    unchecked = [f"{job}: {why}" for job, why in night.unchecked.items()]
    lists = {"Not checked": unchecked, "Errors in the jobs file": night.problems, "Notes": night.notes}
    return {title: items for title, items in lists.items() if items}


def moment(night: str) -> str:
    """Returns the time at which a night began, such as "2026-11-25 01:00 UTC"; other texts as given."""
    found = instant(night)
    return night if found is None else f"{found:%Y-%m-%d %H:%M} UTC"


def rate(record: NightRecord) -> str:
    """Returns the throughput of the accepted plan with its unit; "" if it did not run."""
    return "" if record.accepted is None else rate_text(record.accepted.rate_per_s, record.unit)


def rate_change(record: NightRecord) -> str:
    """Returns the relative difference of the throughput from the expected one; "" if it was not compared."""
    expected = record.verdict.expected_per_s
    return difference(record.accepted.rate_per_s / expected - 1) if record.accepted is not None and expected else ""


def peak(record: NightRecord) -> str:
    """Returns the measured peak and the budget; "" if the plan did not run."""
    if record.accepted is None:
        return ""
    of = f" of {format_bytes(record.budget_bytes)}" if record.budget_bytes else ""
    return f"{format_bytes(record.accepted.peak_bytes)}{of}"


def evidence(record: NightRecord) -> list[str]:
    """Returns what was measured and what it was compared with, each as "name: text"."""
    verdict, second, segment = record.verdict, record.confirmation, record.segment
    expected = ""
    if verdict.low_per_s is not None and verdict.high_per_s is not None:
        band = f"{short_number(verdict.low_per_s)} to {short_number(verdict.high_per_s)}"
        expected = f"; expected {band} by {counted(verdict.compared_nights, 'night')}"
    highest = "" if verdict.high_bytes is None else f"; expected at most {format_bytes(verdict.high_bytes)}"
    proposed = "" if record.proposed is None else plan_words(record.proposed, record)
    if record.proposed_gain is not None:
        proposed += f": {record.proposed_gain} of the accepted plan's throughput"
    device = ""
    if segment is not None:
        driver = f", driver {segment.driver}" if segment.driver else ""
        device = f"{segment.device}{driver}, torch {segment.torch}"
    entries = {
        "throughput": record.accepted and rate(record) + expected,
        "measured again": second and rate_text(second.rate_per_s, record.unit),
        "peak memory": record.accepted and peak(record) + highest,
        "over the baseline": record.gain and str(record.gain),
        "accepted plan": record.accepted and plan_words(record.accepted.plan, record),
        "tuned because": record.tuned,
        "new accepted plan" if record.replaced else "better plan": proposed,
        "device": device,
    }
    return [f"{name}: {text}" for name, text in entries.items() if text]


def plan_words(plan: Plan, record: NightRecord) -> str:
    """Returns a plan in words: its batch, and what it changes from the baseline if that is known."""
    sizes = [plan.values.get(name, 1) for name in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)]
    if MICRO_BATCH_SIZE not in plan.values or not all(type(size) is int for size in sizes):
        return str(plan)
    return describe_plan(plan, record.baseline.plan if record.baseline is not None else Plan())


_HEAD = ("job", "verdict", "throughput", "change", "peak memory")
_Section = tuple[str, str, list[str]]
"""A part of a text about a night: its title, a reason without a full stop or "", and a list."""


def _row(record: NightRecord) -> tuple[str, ...]:
    name, kind = shortened(record.job, _NAME), record.verdict.kind.value
    return name, kind, shortened(rate(record), _NAME), rate_change(record), peak(record)


def _sections(night: NightResult, history: History) -> Iterator[_Section]:
    """Yields the jobs that somebody should look at or that have a better plan, and what concerns the whole night."""
    for record in by_urgency(night.records)[:_MOST_JOBS]:
        if record.verdict.kind in ATTENTION or record.proposed is not None:
            yield _job_section(record, history.get(record.job, (record,)))
    yield from ((title, "", _some(items)) for title, items in of_the_night(night).items())


def _job_section(record: NightRecord, records: Sequence[NightRecord]) -> _Section:
    verdict = record.verdict
    same = list(takewhile(lambda one: one.verdict.kind is verdict.kind, reversed(records)))
    lasting = [f"the same verdict for {len(same):,} nights, since {moment(same[-1].night)}"] if len(same) > 1 else []
    changed = [f"changed since the last steady night: {text}" for text in verdict.changed]
    items = [*lasting, *evidence(record), *_some(changed), *_some(record.notes)]
    return f"{shortened(record.job, _NAME)}: {verdict.kind.value}", verdict.reason, items


def _markdown_section(title: str, reason: str, items: Sequence[str], level: str) -> Iterator[str]:
    yield from (f"{level} {escaped(title)}", "")
    if reason:
        yield from (f"{escaped(reason, _REASON)}.", "")
    yield from (*(f"- {escaped(item, _VALUE)}" for item in items), "")


def _document(lines: Sequence[str]) -> str:
    text = printable("\n".join(lines)).rstrip() + "\n"
    if len(text) <= MOST_LETTERS:
        return text
    begun = text[: text.rindex("\n", 0, MOST_LETTERS - 100)]
    return f"{begun}\n\nThe rest is left out: this text has a maximum length.\n"


def _some(texts: Sequence[str]) -> list[str]:
    """Returns as many texts as a list may have, and the number of the others."""
    more = len(texts) - _MOST_ITEMS
    return [*texts[:_MOST_ITEMS], *([f"and {more:,} more"] if more > 0 else [])]


def _counts(records: Sequence[NightRecord]) -> list[str]:
    kinds = Counter(record.verdict.kind for record in records)
    return [f"{kinds[kind]:,} {names[kinds[kind] != 1]}" for kind, names in URGENCY.items() if kinds[kind]]


MOST_NIGHTS = 60
"""Maximum number of nights of a job that are drawn and listed; older ones are left out."""
_PAGE_NAME, _HEIGHT = 80, 190.0
_STYLES = dict.fromkeys(ATTENTION, "bad") | {VerdictKind.FASTER: "good"}


def to_html(night: NightResult, history: History) -> str:
    """Returns the page. Texts of users are escaped and cut."""
    known = {job: list(records) for job, records in history.items()}
    for record in night.records:
        records = known.setdefault(record.job, [])
        if record.id not in [each.id for each in records]:
            records.append(record)
    newest = by_urgency([records[-1] for records in known.values() if records])
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        files("autofit.nightly").joinpath("trend.html").read_text(encoding="utf-8")
    )
    text = template.render(
        mark=MARK,
        title=f"Night of {shortened(moment(night.night), 40)}",
        exit_code=night.exit_code,
        headline=headline(night),
        others=other_counts(night),
        lists=[(title, [shortened(each, _VALUE) for each in texts]) for title, texts in of_the_night(night).items()],
        jobs=[_page_job(f"job-{number}", known[last.job], night) for number, last in enumerate(newest, start=1)],
        style=asset("charts.css"),
    )
    return printed(text) + "\n"


def _page_job(anchor: str, records: Sequence[NightRecord], night: NightResult) -> dict[str, Any]:
    shown, last = records[-MOST_NIGHTS:], records[-1]
    looked_at = last.verdict.kind in ATTENTION or last.proposed is not None
    return _page_row(last) | {
        "anchor": anchor,
        "name": shortened(last.job, _PAGE_NAME) or "unnamed",
        "reason": shortened(last.verdict.reason, 2 * _VALUE),
        "unchecked": shortened(night.unchecked.get(last.job, ""), _VALUE),
        "evidence": [shortened(text, _VALUE) for text in (*evidence(last), *last.notes)] if looked_at else [],
        "chart": _chart(shown),
        "left_out": len(records) - len(shown),
        "rows": [_page_row(record) for record in reversed(shown)],
    }


def _page_row(record: NightRecord) -> dict[str, str]:
    notes = [record.verdict.reason] if record.verdict.kind in _STYLES else []
    notes += record.verdict.changed
    if record.proposed is not None:
        notes.append(f"{'new' if record.replaced else 'better'} plan: {plan_words(record.proposed, record)}")
    return {
        "night": shortened(moment(record.night), 40),
        "style": _STYLES.get(record.verdict.kind, ""),
        "verdict": record.verdict.kind.value,
        "rate": shortened(rate(record), _PAGE_NAME),
        "change": rate_change(record),
        "peak": peak(record),
        "note": shortened("; ".join(notes), _VALUE),
    }


def _chart(records: Sequence[NightRecord]) -> str:
    """Returns the throughput of nights with their bands as SVG; "" if the plan never ran."""
    unit = records[-1].unit
    rates = [record.accepted.rate_per_s if record.accepted and record.unit == unit else None for record in records]
    known = [each for each in rates if each is not None]
    if not known:
        return ""
    bands = [(record.verdict.low_per_s, record.verdict.high_per_s) for record in records]
    low, high = span([*known, *(end for band in bands for end in band if end is not None)])
    ticks = rate_ticks(low, high, 5)
    drawing = Drawing(f"Throughput of {shortened(records[-1].job, _PAGE_NAME)} over {len(records)} nights")
    area = Box(margin(ticks), 28.0, WIDTH - 12, 28.0 + _HEIGHT)
    x, y = AxisScale(-0.5, len(records) - 0.5, area.left, area.right), AxisScale(low, high, area.bottom, area.top)
    step = max(len(records) // 6, 1)
    dates = [(float(at), shortened(moment(records[at].night)[:10], 10)) for at in range(0, len(records), step)]
    axes(drawing, area, (x, dates, "night"), (y, ticks, f"{shortened(unit, 20)}/s"))
    for at, (record, value, (least, most)) in enumerate(zip(records, rates, bands, strict=True)):
        if least is not None and most is not None:
            drawing.rect(x(at - 0.5), y(most), x(at + 0.5), y(least), "tr-band")
        if at and record.segment != records[at - 1].segment:
            drawing.line(x(at - 0.5), area.top, x(at - 0.5), area.bottom, "tr-segment")
        if value is not None:
            kind = _STYLES.get(record.verdict.kind, "night")
            drawing.add("circle", class_=f"tr-{kind}", cx=x(at), cy=y(value), r=3)
    drawing.height = area.bottom + 44
    return str(drawing.svg())
