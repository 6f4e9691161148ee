"""The table of all plans: sorted and filtered in the page by its script, and complete without one."""

from collections.abc import Collection

from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.reports.counting import RATIOS, counted
from autofit.reports.html.parts import LABEL, REASON, breakable, scrolled
from autofit.reports.markup import Markup, element, joined, shortened
from autofit.reports.report import UPPER_BOUND, PlanRow, Report

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
    body = joined(_row(row, columns, most) for row in report.rows)
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


def _row(row: PlanRow, columns: Collection[str], most: int) -> Markup:
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
