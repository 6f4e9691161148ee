"""The beginning of the page: the outcome of the night, key figures, and all jobs with their newest verdicts."""

from collections.abc import Sequence

from autofit.core.units import format_bytes, format_duration
from autofit.nightly.outputs.facts import ATTENTION, change, day, headline, rate, since, verdict_counts
from autofit.nightly.outputs.trend.jobs import Trend
from autofit.nightly.outputs.trend.nights import STYLES, mark
from autofit.nightly.records import VerdictKind
from autofit.nightly.result import NightResult
from autofit.reports.markup import (
    LABEL,
    REASON,
    Child,
    Markup,
    breakable,
    bullets,
    element,
    joined,
    number,
    scrolled,
    shortened,
    tile,
)
from autofit.reports.sentences import counted
from autofit.reports.svg.axes import AxisScale

NAME = 120
"""Number of characters after which the name of a job is cut."""
_NIGHTS, _WIDTH, _HEIGHT = 40, 140.0, 28.0
"""Number of nights and size of the small charts of throughput."""
_LEAST_SPAN = 0.08
"""Smallest span of a small chart, relative to its highest value, so that the noise of a steady job does not fill it."""
_MOST_LISTED = 30
_GOOD = (VerdictKind.STEADY, VerdictKind.FASTER)


def index(night: NightResult, trends: Sequence[Trend]) -> Markup:
    """Returns the headline, the key figures, the table of jobs, and what went wrong beside them."""
    lead = element("p", breakable(shortened(headline(night), 2 * LABEL)), class_="headline")
    tiles = element("div", joined(_tiles(night)), class_="tiles")
    rest = [_listed("Errors in the jobs file", night.problems), _listed("Notes on the night", night.notes)]
    return element("section", lead, tiles, *rest, _table(trends), id="answer", aria_label="The night")


def _tiles(night: NightResult) -> list[Markup]:
    records = night.records
    urgent = sum(record.verdict.kind in ATTENTION for record in records)
    good = sum(record.verdict.kind in _GOOD for record in records)
    total, took_s = len(records) + len(night.unchecked), sum(record.duration_s for record in records)
    missing = f"{len(night.unchecked):,} not checked" if night.unchecked else "all jobs of the jobs file"
    attention = verdict_counts(records, ATTENTION) or "no job"
    return [
        tile("Need attention", f"{urgent:,}", attention, "bad" if urgent else ""),
        tile(
            "Steady or faster", f"{good:,}", verdict_counts(records, _GOOD) or "no job", "good" if good == total else ""
        ),
        tile("Checked", f"{len(records):,} of {total:,}", missing),
        tile("Runs", f"{sum(record.probes for record in records):,}", f"in {format_duration(took_s)}"),
    ]


def _listed(title: str, texts: Sequence[str]) -> Markup | None:
    if not texts:
        return None
    items = [shortened(text, 2 * REASON) for text in texts[:_MOST_LISTED]]
    items += [f"and {len(texts) - _MOST_LISTED:,} more"] if len(texts) > _MOST_LISTED else []
    return element("div", element("h3", title), bullets(items))


def _table(trends: Sequence[Trend]) -> Markup | None:
    if not trends:
        return None
    names = ("Job", "Verdict", "Throughput", "Peak memory", f"Last {_NIGHTS} nights", "Unchanged")
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    caption = element("caption", "All jobs, newest verdicts first", class_="hidden")
    table = element("table", caption, head, element("tbody", *map(_row, trends)), class_="stacked tr-index")
    return scrolled(table, "All jobs, newest verdicts first")


def _row(trend: Trend) -> Markup:
    name: Child = breakable(shortened(trend.name, NAME) or "unnamed")
    if not trend.records:
        head = element("th", name, element("div", shortened(trend.unchecked, REASON), class_="why"), scope="row")
        return element("tr", head, element("td", "not checked", class_="v vu"), *(element("td") for _ in range(4)))
    last, nights = trend.last, since(trend.records)[1]
    link = element("a", name, href=f"#{trend.anchor}")
    older = None if trend.tonight else element("span", f" {shortened(day(last.night), 20)}", class_="aside")
    cells = [
        element("td", last.verdict.kind.value, older, class_=f"v {STYLES[trend.kind]}"),
        element("td", shortened(rate(last), 40), _aside(change(last))),
        element("td", *_peak(trend)),
        element("td", _small_chart(trend)),
        element("td", f"for {counted(nights, 'night')}"),
    ]
    return element("tr", element("th", link, _why(trend), scope="row"), *cells)


def _why(trend: Trend) -> Markup | None:
    """Returns what a reader should know beside the verdict: its reason, or why the job was not checked."""
    texts = [f"not checked: {trend.unchecked}"] if trend.unchecked else []
    texts += [] if trend.kind in _GOOD else [trend.last.verdict.reason]
    return element("div", shortened("; ".join(texts), REASON), class_="why") if texts else None


def _peak(trend: Trend) -> list[Child]:
    figures, budget = trend.last.accepted, trend.last.budget_bytes
    if figures is None:
        return []
    share = f"{figures.peak_bytes / budget:.0%} of {format_bytes(budget)}" if budget else ""
    return [format_bytes(figures.peak_bytes), _aside(share)]


def _aside(text: str) -> Markup | None:
    return element("span", f" {text}", class_="aside") if text else None


def _small_chart(trend: Trend) -> Markup:
    """Returns the throughput of the last nights as a line that ends with the mark of the newest verdict."""
    records = trend.records[-_NIGHTS:]
    rates = [one.accepted.rate_per_s if one.accepted and one.unit == trend.last.unit else None for one in records]
    known = [rate for rate in rates if rate is not None]
    high = max(known, default=1.0) or 1.0
    low = min([*known, high * (1 - _LEAST_SPAN)])
    y = AxisScale(low, high, _HEIGHT - 7, 7)
    x = AxisScale(0, _NIGHTS, 3, _WIDTH - 8)
    path, pen = "", "M"
    for place, value in enumerate(rates, start=_NIGHTS - len(rates) + 1):
        path += f"{pen}{number(x(place))} {number(y(value))}" if value is not None else ""
        pen = "M" if value is None else "L"
    at = x.end, (_HEIGHT / 2 if rates[-1] is None else y(rates[-1]))
    style = STYLES[trend.kind]
    inside = [
        element("path", d=path, class_="tr-line") if known else None,
        element("path", d=mark(trend.kind, *at), class_=style),
    ]
    size = f"0 0 {number(_WIDTH)} {number(_HEIGHT)}"
    return element("svg", *inside, class_="tr-small", viewBox=size, aria_hidden="true")
