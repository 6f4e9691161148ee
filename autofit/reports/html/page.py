"""The report as one HTML page: charts as SVG, its own style and script, and nothing from a network."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from autofit.core.units import format_bytes, format_duration
from autofit.reports.counting import moment, runs, verdict
from autofit.reports.html.answer import answer
from autofit.reports.html.parts import LABEL, REASON, bullets, code_block, data_table, facts, scrolled, section
from autofit.reports.html.plans import plans_table
from autofit.reports.markup import Child, Markup, element, shortened
from autofit.reports.report import Report
from autofit.reports.svg import CHARTS
from autofit.reports.svg.chart import Chart
from autofit.reports.svg.drawing import NARROW, WIDE, style_sheet

_VERDICTS = {"passed": "ok", "failed": "bad", "not checked": "none"}
"""Style of each result of a numerical check."""
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1l7 7-7 7-7-7z' fill='%230072b2'/%3E%3C/svg%3E"
)


MOST_OPEN = 10
"""Number of combinations without a measurement that are shown at once; the others are folded."""


def render(report: Report) -> str:
    """Returns the page, complete and the same for the same report.

    Every text of the report is escaped. The content security policy admits only the page's own style and script, by
    their digests.
    """
    sections = [*_charts(report), *_rest(report)]
    main = element("main", answer(report), *(body for _, _, body in sections), id="main")
    body = element("div", _contents(sections), main, class_="columns")
    skip = element("a", "Skip to the answer", href="#main", class_="skip")
    tip = element("div", id="tip", role="tooltip", hidden=True)
    script = element("script", Markup(_script()))
    page = element("body", skip, _header(report), body, _footer(report), tip, script)
    return f"<!DOCTYPE html>\n{element('html', _head(report), page, lang='en')}\n"


def _head(report: Report) -> Markup:
    policy = (
        f"default-src 'none'; style-src '{_digest(_style())}'; script-src '{_digest(_script())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{shortened(report.title, 80)} – autofit report"),
        element("link", rel="icon", href=_ICON),
        element("style", Markup(_style())),
    )


def _digest(text: str) -> str:
    """Returns the source expression of an inline style or script (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _style() -> str:
    return files("autofit.reports.html").joinpath("page.css").read_text(encoding="utf-8") + style_sheet()


@cache
def _script() -> str:
    return files("autofit.reports.html").joinpath("page.js").read_text(encoding="utf-8")


def _header(report: Report) -> Markup:
    device = f"{shortened(report.environment.device_name, 80)} ({shortened(report.environment.device_type, 20)})"
    about = [device, shortened(moment(report.created), 40), _trials(report)]
    toggle = element(
        "button", "Dark", type="button", id="theme", hidden=True, aria_label="Dark theme", aria_pressed="false"
    )
    return element(
        "header",
        element("p", "autofit report", class_="eyebrow"),
        element("h1", shortened(report.title, 160) or "untitled"),
        element("p", " · ".join(text for text in about if text), class_="meta"),
        toggle,
    )


def _trials(report: Report) -> str:
    counts = shortened(runs(report), LABEL)
    return f"{counts} in {format_duration(report.duration_s)}" if counts and report.duration_s else counts


def _contents(sections: list[tuple[str, str, Markup]]) -> Markup:
    links = [("answer", "The answer"), *((anchor, heading) for anchor, heading, _ in sections)]
    items = [element("a", heading, href=f"#{anchor}") for anchor, heading in links]
    return element("nav", element("p", "Contents", class_="eyebrow"), bullets(items), aria_label="Contents")


def _charts(report: Report) -> list[tuple[str, str, Markup]]:
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


def _rest(report: Report) -> list[tuple[str, str, Markup]]:
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
            found.append(element("details", element("summary", more), _table(head, rest, f"{name}: {more}")))
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


def _footer(report: Report) -> Markup:
    version = shortened(report.environment.versions.get("autofit", ""), 40)
    text = f"Made by autofit {version}".rstrip()
    note = "All throughputs are on one scale. This file holds everything it shows and needs no network."
    return element("footer", element("p", f"{text}. {note}"))
