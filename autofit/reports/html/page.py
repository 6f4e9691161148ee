"""The report as one HTML page: charts as SVG, its own style and script, and nothing from a network."""

from functools import cache
from importlib.resources import files

from autofit.core.units import format_bytes, format_duration
from autofit.reports.counting import moment, runs, verdict
from autofit.reports.html.answer import answer
from autofit.reports.html.frame import Frame, Section, page, script, style
from autofit.reports.html.parts import LABEL, REASON, bullets, code_block, data_table, facts, scrolled, section
from autofit.reports.html.plans import plans_table
from autofit.reports.markup import Child, Markup, element, shortened
from autofit.reports.report import Report
from autofit.reports.svg import CHARTS
from autofit.reports.svg.chart import Chart
from autofit.reports.svg.drawing import NARROW, WIDE

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
    return files("autofit.reports.html").joinpath("plans.js").read_text(encoding="utf-8")


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
