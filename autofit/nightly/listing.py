"""Listing: the jobs with their last verdicts, and the order of the next night, as tables and as JSON."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from autofit.core.printable import one_line
from autofit.nightly import proposals
from autofit.nightly.schedule import Scheduled, age
from autofit.reports.tables import Column, table


def jobs_table(order: Sequence[Scheduled], now: datetime, width: int) -> str:
    """Returns the jobs by name: the last verdict, its age, and the file of the accepted plan."""
    found = sorted(order, key=lambda each: each.job.name)
    last = [each.past[-1] if each.past else None for each in found]
    columns = [
        Column("job", [each.job.name for each in found]),
        Column("verdict", ["never checked" if record is None else record.verdict.kind.value for record in last]),
        Column("checked", ["" if record is None else age(record.at, now) for record in last]),
        Column("plan", [_plan(each) for each in found]),
    ]
    return "\n".join(table(columns, width))


def order_table(order: Sequence[Scheduled], width: int) -> str:
    """Returns the jobs in the order in which the next night checks them, with the reason."""
    names = [each.job.name for each in order]
    return "\n".join(table([Column("order", names), Column("why", [each.why for each in order])], width))


def document(order: Sequence[Scheduled], problems: Sequence[str], now: datetime) -> dict[str, Any]:
    """Returns the same as a JSON document, the jobs in the order of the next night."""
    return {
        "jobs": [
            {
                "name": each.job.name,
                "why": each.why,
                "done": each.done,
                "verdict": each.past[-1].verdict.kind.value if each.past else None,
                "checked_at": each.past[-1].at if each.past else None,
                "nights": len(each.past),
                "plan": str(each.job.plan),
                "has_plan": each.job.plan.exists(),
                "has_proposal": proposals.new_path(each.job.plan).exists(),
            }
            for each in order
        ],
        "problems": list(problems),
        "now": now.isoformat(timespec="seconds"),
    }


def _plan(each: Scheduled) -> str:
    """Returns the name of the accepted plan, and whether it exists or another one is proposed."""
    name = one_line(each.job.plan.name)
    if not each.job.plan.exists():
        return f"{name} (none yet)"
    return f"{name} (new plan proposed)" if proposals.new_path(each.job.plan).exists() else name
