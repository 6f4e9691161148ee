"""Tables and facts that the page and the Markdown document of a report share, as texts."""

from autofit.core.units import format_bytes
from autofit.reports.markup import DataTable
from autofit.reports.report import Report
from autofit.reports.sentences import answer_times, moment, runs

NOT_MEASURED, NOT_SEARCHED = "Combinations that were not measured", "Techniques that were not searched"
"""Titles of `left_out` and of `refused`."""
_UNCHECKED = "could not be checked"
"""Part of the reason of a numerical check that could not be run (`autofit.gates.check`)."""


def gates(report: Report) -> DataTable:
    """Returns the numerical checks: "passed", "failed", or "not checked" for one that could not be run."""
    rows = tuple(
        (gate.name, "passed" if gate.passed else "not checked" if _UNCHECKED in gate.reason else "failed", gate.reason)
        for gate in report.gates
    )
    return DataTable(("technique", "result", "what was found"), rows)


def left_out(report: Report) -> DataTable:
    """Returns the combinations of which no plan was measured."""
    rows = tuple((each.label, each.basis, each.reason) for each in report.left_out)
    return DataTable(("closest plan", "evidence", "reason"), rows)


def refused(report: Report) -> DataTable:
    """Returns the techniques and values that were not searched."""
    return DataTable(("technique or value", "reason"), tuple((each.name, each.reason) for each in report.refused))


def environment(report: Report) -> list[tuple[str, str]]:
    """Returns where and how the plans were measured, as names with values."""
    place = report.environment
    facts = {
        "device": f"{place.devices} ({place.device_type}), {format_bytes(place.capacity_bytes)}",
        "budget": report.budget_note or format_bytes(report.budget_bytes),
        "threads": "" if place.threads is None else str(place.threads),
        "versions": ", ".join(f"{name} {version}" for name, version in place.versions.items()),
        "settings": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in place.settings.items()),
        "trials": runs(report),
        "answers": answer_times(report),
        "search ended": report.stopped,
        "workload signature": place.workload,
        "study": report.study,
        "plan file": report.plan_file,
        "created": moment(report.created),
    }
    return [(name, value) for name, value in facts.items() if value]
