"""The table of all plans: sorted and filtered in the page by its script, and complete without one."""

from autofit.core.units import format_bytes, format_duration, short_number
from autofit.reports.html.parts import LABEL, REASON, scrolled
from autofit.reports.markup import Markup, element, joined, shortened
from autofit.reports.report import PlanRow, Report

_MANY, _CUT = 150, 140
"""Number of rows from which reasons are cut to fewer characters, so that the page stays below 500 kB."""
_STATUS = {"measured": "ok", "skipped": "none", "interrupted": "none"}


def plans_table(report: Report) -> Markup:
    """Returns the controls and the table of all plans, one row each."""
    most = REASON if len(report.rows) < _MANY else _CUT
    heads = element("tr", joined(_head(name, kind) for name, kind in _columns(report)))
    body = joined(_row(row, most) for row in report.rows)
    caption = element("caption", "All plans, best first", class_="hidden")
    table = element("table", caption, element("thead", heads), element("tbody", body), id="plans-table")
    return joined([_controls(report), scrolled(table, "All plans", "scroll plans")])


def _columns(report: Report) -> list[tuple[str, str]]:
    """Returns the names of the columns with how they sort: as "number" or as "text"."""
    return [
        ("#", "number"), ("Batch", "number"), ("Plan", "text"), (f"{report.unit.capitalize()}/s", "number"),
        ("Gain", "number"), ("Peak", "number"), ("Estimated", "number"), ("Status", "text"), ("Reason", "text"),
        ("Took", "number"),
    ]  # fmt: skip


def _head(name: str, kind: str) -> Markup:
    button = element("button", name, element("span", class_="arrow", aria_hidden="true"), type="button", disabled=True)
    paper = element("span", name, class_="paper")
    return element("th", paper, button, scope="col", data_sort=kind, aria_sort="ascending" if name == "#" else None)


def _row(row: PlanRow, most: int) -> Markup:
    role = {"recommended": "recommended", "baseline": "baseline"}.get(row.role, "baseline" if row.is_baseline else "")
    badge = element("span", role, class_=f"badge {role}") if role else None
    label = shortened(row.combination, LABEL if most == REASON else _CUT)
    batch = f"{row.micro_batch_size:,}" + (f" × {row.accumulation_steps:,}" if row.accumulation_steps > 1 else "")
    estimate = None if row.estimate is None else row.estimate.value_bytes
    status = f"{row.status}, earlier search" if row.earlier else row.status
    cells = [
        element("td", str(row.rank)),
        element("td", batch),
        element("th", badge, Markup(" ") if badge else None, label, scope="row"),
        element("td", "–" if row.rate_per_s is None else short_number(row.rate_per_s)),
        element("td", "–" if row.gain is None else f"{row.gain.value:.2f}x"),
        _cell(row.peak_bytes, "–" if row.peak_bytes is None else format_bytes(row.peak_bytes)),
        _cell(estimate, "–" if estimate is None else format_bytes(estimate)),
        element(
            "td", status, class_=f"st {_STATUS.get(row.status, 'bad')}", data_s=row.status if row.earlier else None
        ),
        element("td", shortened(row.reason, most) if row.reason else ""),
        _cell(row.duration_s, format_duration(row.duration_s) if row.duration_s else "–"),
    ]
    return element("tr", *cells, id=f"p{row.rank}", class_=role or None)


def _cell(value: float | None, text: str) -> Markup:
    """Returns a cell with the value that it is sorted by, which its text does not show."""
    return element("td", text, data_v=None if value is None else f"{value:.15g}")


def _controls(report: Report) -> Markup:
    counts: dict[str, int] = {}
    for row in report.rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    options = [element("option", f"all ({len(report.rows)})", value="")]
    options += [element("option", f"{status} ({count})", value=status) for status, count in counts.items()]
    text = element("input", type="search", id="filter", autocomplete="off", placeholder="bf16, micro batch 32 …")
    fields = [
        element("label", "Filter by text ", text),
        element("label", "Status ", element("select", joined(options), id="status")),
        element("output", f"{len(report.rows)} plans", id="shown", role="status"),
    ]
    return element("div", *fields, class_="controls", hidden=True)
