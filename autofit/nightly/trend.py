"""The trend page: every job with the history of its throughput, as one HTML file without network or script."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from autofit.core.printable import printable
from autofit.nightly.outputs import (
    ATTENTION,
    History,
    by_urgency,
    evidence,
    headline,
    moment,
    of_the_night,
    other_counts,
    peak,
    plan_words,
    rate,
    rate_change,
)
from autofit.nightly.records import NightRecord, NightResult, VerdictKind
from autofit.reports.markup import shortened
from autofit.reports.svg.axes import AxisScale, axes, margin, rate_ticks, span
from autofit.reports.svg.drawing import Box, Drawing, Format, style_sheet

MOST_NIGHTS = 60
"""Maximum number of nights of a job that are drawn and listed; older ones are left out."""
_NAME, _TEXT, _HEIGHT = 80, 300, 190.0
_NONCHARACTERS = dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd")
"""Letters that XML does not allow."""
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
        title=f"Night of {shortened(moment(night.night), 40)}",
        exit_code=night.exit_code,
        headline=headline(night),
        others=other_counts(night),
        lists=[(title, [shortened(item, _TEXT) for item in items]) for title, items in of_the_night(night).items()],
        jobs=[_job(f"job-{number}", known[last.job], night) for number, last in enumerate(newest, start=1)],
        style=style_sheet(),
    )
    return printable(text).translate(_NONCHARACTERS) + "\n"


def _job(anchor: str, records: Sequence[NightRecord], night: NightResult) -> dict[str, Any]:
    shown, last = records[-MOST_NIGHTS:], records[-1]
    looked_at = last.verdict.kind in ATTENTION or last.proposed is not None
    return _row(last) | {
        "anchor": anchor,
        "name": shortened(last.job, _NAME) or "unnamed",
        "reason": shortened(last.verdict.reason, 2 * _TEXT),
        "unchecked": shortened(night.unchecked.get(last.job, ""), _TEXT),
        "evidence": [shortened(text, _TEXT) for text in (*evidence(last), *last.notes)] if looked_at else [],
        "chart": _chart(shown),
        "left_out": len(records) - len(shown),
        "rows": [_row(record) for record in reversed(shown)],
    }


def _row(record: NightRecord) -> dict[str, str]:
    return {
        "night": shortened(moment(record.night), 40),
        "style": _STYLES.get(record.verdict.kind, ""),
        "verdict": record.verdict.kind.value,
        "rate": shortened(rate(record), _NAME),
        "change": rate_change(record),
        "peak": peak(record),
        "note": shortened("; ".join(_notes(record)), _TEXT),
    }


def _notes(record: NightRecord) -> Iterator[str]:
    if record.verdict.kind in _STYLES:
        yield record.verdict.reason
    yield from record.verdict.changed
    if record.proposed is not None:
        yield f"{'new' if record.replaced else 'better'} plan: {plan_words(record.proposed, record)}"


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
    drawing = Drawing(Format(), f"Throughput of {shortened(records[-1].job, _NAME)} over {len(records)} nights")
    area = Box(margin(ticks), 28.0, drawing.format.width - 12, 28.0 + _HEIGHT)
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
