"""The page of a diagnosis: its findings, the memory of one step by kind, and the memory from step to step."""

from collections.abc import Sequence

from autofit.doctor.diagnosis import Diagnosis, Finding, cost, measured
from autofit.reports.frame import Section, filled, page
from autofit.reports.markup import DataTable, Markup, shortened
from autofit.reports.sentences import counted
from autofit.reports.svg.memory import growth_chart, step_chart

DURING, BETWEEN = "Memory during one step", "Memory from step to step"


def render(diagnosis: Diagnosis) -> str:
    """Returns the page. It loads nothing, and every text of the diagnosis is escaped."""
    d = diagnosis
    shown = [finding for finding in d.findings if not finding.minor]
    minor = [finding for finding in d.findings if finding.minor]
    sections: list[Section] = []
    if d.profile.live_bytes:
        aid = "Live tensors at each allocation and release, by kind; the horizontal axis is not time."
        sections.append(
            ("step", DURING, filled("doctor.jinja", "figure", DURING, aid, step_chart(d.profile, d.unread)))
        )
    if d.levels:
        aid = "Live tensors at the end of each observed step. A training whose memory does not grow has level bars."
        sections.append(("steps", BETWEEN, filled("doctor.jinja", "figure", BETWEEN, aid, growth_chart(d.levels))))
    if minor:
        sections.append(("minor", "Minor findings", filled("doctor.jinja", "findings", minor, *_texts(d, minor))))
    sections.append(("checked", "What was checked", _checked(d)))
    sections.append(("where", "Where", filled("parts.jinja", "facts", list(d.versions.items()))))
    return page(
        filled("doctor.jinja", "answer", d, shown, *_texts(d, shown)),
        sections,
        window=f"{shortened(d.target, 120)} – autofit doctor",
        kind="autofit doctor",
        title=shortened(d.target, 120),
        about=[
            shortened(d.device_name, 80),
            counted(d.steps, "step"),
            f"{counted(d.samples, 'sample')} a step" if d.samples else "",
        ],
        footer="Made by autofit. This file needs no network.",
    )


def _texts(diagnosis: Diagnosis, findings: Sequence[Finding]) -> tuple[list[str], list[str]]:
    """Returns what each finding costs, and the change with which it was measured, in words."""
    return [cost(diagnosis, finding) for finding in findings], [measured(finding) for finding in findings]


def _checked(diagnosis: Diagnosis) -> Markup:
    found = {finding.id for finding in diagnosis.findings}
    rows = [(name, "found" if name in found else "nothing found") for name in diagnosis.checked]
    rows += [(each.id, f"not checked: {each.reason}") for each in diagnosis.unchecked]
    return filled(
        "parts.jinja", "data_table", DataTable(("kind of finding", "result"), tuple(rows)), "What was checked"
    )
