"""The section of a job: its newest verdict with the evidence, the chart of its nights, and their values."""

from collections import Counter
from collections.abc import Iterator

from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.nightly.instants import instant
from autofit.nightly.outputs.facts import (
    ATTENTION,
    change,
    day,
    evidence,
    moment,
    plan_words,
    readable,
    since,
)
from autofit.nightly.outputs.trend import chart, throughput_panel
from autofit.nightly.outputs.trend.entries import TrendEntry
from autofit.nightly.outputs.trend.index import NAME
from autofit.nightly.outputs.trend.jobs import Trend
from autofit.nightly.outputs.trend.nights import STYLES
from autofit.nightly.records import VerdictKind
from autofit.reports.markup import (
    LABEL,
    REASON,
    Child,
    Markup,
    breakable,
    bullets,
    code_block,
    element,
    escaped,
    facts,
    joined,
    scrolled,
    shortened,
)
from autofit.reports.svg.axes import NOT_FROM_ZERO
from autofit.reports.svg.drawing import NARROW, WIDE

_MOST_CHANGES, _MOST_SEGMENTS, _NOTE = 12, 8, 160
_HEAD = ("Night", "Verdict", "Rate", "Change", "Peak", "Gain", "Note")


def job_section(trend: Trend) -> Markup:
    """Returns the section of a job with at least one record."""
    title = element("h2", breakable(shortened(trend.name, NAME) or "unnamed"), id=f"{trend.anchor}-heading")
    parts = [_verdict(trend), *_evidence(trend), *_history(trend)]
    return element("section", title, *parts, id=trend.anchor, aria_labelledby=f"{trend.anchor}-heading", class_="job")


def _verdict(trend: Trend) -> Markup:
    """Returns the newest verdict in a sentence, with how long it has lasted."""
    verdict, (first, nights) = trend.last.verdict, since(trend.records)
    kind = f"{verdict.kind.value[:1].upper()}{verdict.kind.value[1:]}"
    texts: list[Child] = [element("strong", f"{kind}: "), breakable(f"{shortened(verdict.reason, 2 * REASON)}.")]
    if nights > 1:
        texts += [f" The same verdict for {nights:,} nights, since ", _date(first), "."]
    if trend.unchecked:
        texts.append(f" Not checked in the newest night: {shortened(trend.unchecked, REASON)}.")
    if not trend.tonight:
        texts += [" Last checked on ", _date(trend.last.night), "."]
    return element("p", element("span", *texts), class_=f"verdict v {STYLES[verdict.kind]}")


def _date(night: str) -> Markup:
    """Returns the date of a night, which is not broken at its hyphens."""
    text = shortened(day(night), 20)
    return element("time", text) if instant(night) is not None else escaped(text)


def _evidence(trend: Trend) -> Iterator[Child]:
    """Yields the evidence of a verdict that somebody should look at, or of a proposal, and what changed."""
    last, verdict = trend.last, trend.last.verdict
    if trend.kind in ATTENTION or last.proposed is not None:
        yield facts([(name, shortened(text, LABEL)) for name, text in evidence(last)])
    if verdict.changed and (trend.kind in ATTENTION or trend.kind is VerdictKind.CANNOT_COMPARE):
        changes = [shortened(readable(text), LABEL) for text in verdict.changed[:_MOST_CHANGES]]
        more = len(verdict.changed) - len(changes)
        yield element("h3", "What changed since the last steady night")
        yield bullets([*changes, *([f"and {more:,} more"] if more else [])])
    if verdict.bisect:
        yield code_block("How to find the cause", "\n".join(shortened(text, REASON) for text in verdict.bisect))
    if last.notes:
        yield bullets([shortened(text, REASON) for text in last.notes[:_MOST_CHANGES]])


def _history(trend: Trend) -> Iterator[Child]:
    if chart.available(trend):
        yield _key(trend)
        wide, narrow = (element("div", chart.draw(trend, form).svg(), class_=name) for form, name in _FORMS)
        yield element("figure", wide, narrow)
        yield element("p", *_aids(trend), class_="aid")
    else:
        yield element("p", "There is no chart: the plan has not run yet.", class_="aid")
    yield from _segments(trend)
    name = f"Nights of {shortened(trend.name, NAME)}, newest first"
    yield element("details", element("summary", "Values as a table"), _table(trend, name), class_="values")


_FORMS = ((WIDE, "wide"), (NARROW, "narrow"))


def _key(trend: Trend) -> Markup:
    """Returns what the marks and lines of the chart stand for; only those that it has."""
    kinds = {entry.kind for entry in trend.entries}
    items = [element("li", kind.value, class_=f"v {STYLES[kind]}") for kind in STYLES if kind in kinds]
    if any(entry.band for entry in trend.entries):
        items.append(element("li", "noise band of throughput", class_="v kb"))
    if any(entry.last.verdict.high_bytes is not None for entry in trend.entries):
        items.append(element("li", "limit of memory", class_="v kl"))
    if any(entry.changes for entry in trend.entries):
        items.append(element("li", "new segment", class_="v kn"))
    if any(change.startswith("plan: ") for entry in trend.entries for change in entry.changes):
        items.append(element("li", "new plan", class_="v kd"))
    if any(entry.last.proposed is not None and not entry.last.replaced for entry in trend.entries):
        items.append(element("li", "proposed plan", class_="v kp"))
    return element("ul", joined(items), class_="key")


def _aids(trend: Trend) -> Iterator[Child]:
    """Yields sentences on how to read the chart."""
    yield "Each point is one night."
    if trend.shared is not None:
        most = max(len(entry.records) for entry in trend.entries)
        yield from (" Nights until ", _date(trend.shared.last.night), ", which are shaded, are closer together: ")
        yield f"a point stands for up to {most} nights with the same verdict. It shows their median throughput, with a "
        yield "line from the slowest to the fastest one, and their highest peak."
    if trend.left_out:
        yield f" The oldest {trend.left_out:,} nights are left out."
    (low, _), _ = throughput_panel.axis(trend.entries)
    if low > 0:
        yield f" {NOT_FROM_ZERO}"


def _segments(trend: Trend) -> Iterator[Markup]:
    """Yields the list of segments, newest first, with what began each."""
    found = [entry for entry in reversed(trend.entries) if entry.changes]
    if found:
        items = [_segment(entry) for entry in found[:_MOST_SEGMENTS]]
        more = len(found) - _MOST_SEGMENTS
        items += [escaped(f"and {more:,} earlier")] if more > 0 else []
        yield element("p", "Figures of different segments are not compared.", class_="aid")
        yield bullets(items, "segments")


def _segment(entry: TrendEntry) -> Markup:
    changes = "; ".join(shortened(readable(text), _NOTE) for text in entry.changes)
    return joined([f"Segment {entry.segment}, from ", _date(entry.records[0].night), f": {changes}"])


def _table(trend: Trend, name: str) -> Markup:
    head = element("tr", *(element("th", text, scope="col") for text in _heads(trend)))
    days = Counter(day(record.night) for record in trend.records)
    rows = [_row(entry, days) for entry in reversed(trend.entries)]
    caption = element("caption", name, class_="hidden")
    return scrolled(
        element("table", caption, element("thead", head), element("tbody", joined(rows))), name, "scroll nights"
    )


def _heads(trend: Trend) -> list[str]:
    names = {"Rate": f"{shortened(trend.last.unit, 20)}/s".capitalize(), "Change": "Against expected"}
    names |= {"Gain": "Over the baseline", "Peak": "Peak memory"}
    return [names.get(name, name) for name in _HEAD]


def _row(entry: TrendEntry, days: Counter[str]) -> Markup:
    last, peak = entry.last, entry.peak_bytes
    texts = (
        "" if entry.rate_per_s is None else short_number(entry.rate_per_s),
        change(last) if len(entry.records) == 1 else "",
        "" if peak is None else format_bytes(peak),
        "" if last.gain is None else format_ratio(last.gain.value),
        shortened("; ".join(_notes(entry)), _NOTE),
    )
    # A steady night has no class: there are thousands of them.
    style = None if entry.kind is VerdictKind.STEADY else f"v {STYLES[entry.kind]}"
    verdict = element("td", entry.kind.value, class_=style)
    return element(
        "tr", element("th", _name(entry, days), scope="row"), verdict, *(element("td", text) for text in texts)
    )


def _name(entry: TrendEntry, days: Counter[str]) -> str:
    """Returns the date of a night, with the time if another one began on that day, or the dates of several nights."""
    first, last = (shortened(day(record.night), 20) for record in (entry.records[0], entry.last))
    if len(entry.records) > 1:
        one_year = first[:5] == last[:5] and instant(entry.last.night) is not None
        return f"{first} to {last[5:] if one_year else last}"
    alone = days[day(entry.last.night)] == 1 or instant(entry.last.night) is None
    return last if alone else shortened(moment(entry.last.night), 40).removesuffix(" UTC")


def _notes(entry: TrendEntry) -> Iterator[str]:
    last, count = entry.last, len(entry.records)
    if count > 1:
        yield f"median of {count:,} nights" if entry.rate_per_s is not None else f"{count:,} nights"
    if entry.changes:
        yield f"segment {entry.segment}: {', '.join(readable(text) for text in entry.changes)}"
    if entry.kind in ATTENTION or entry.kind is VerdictKind.FASTER:
        yield last.verdict.reason
    if last.tuned:
        yield f"tuned: {last.tuned}"
    if last.proposed is not None:
        yield f"{'new' if last.replaced else 'proposed'} plan: {plan_words(last.proposed, last)}"
