"""In which order a night checks its jobs, and why. The job that was not checked for longest comes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from autofit.core.errors import UsageError
from autofit.core.printable import one_line
from autofit.core.units import format_duration
from autofit.nightly.history import History
from autofit.nightly.jobs import Job, JobsFile
from autofit.nightly.records import NightRecord, VerdictKind, instant
from autofit.reports.tables import Column, table


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A job in the order of a night, with its records, oldest first, and why it has its place, in words.

    `done` is its record in the night that is continued; None if that has not checked it.
    """

    job: Job
    past: tuple[NightRecord, ...]
    done: NightRecord | None
    why: str


def scheduled(jobs: JobsFile, history: History, now: datetime, only: Sequence[str] = ()) -> list[Scheduled]:
    """Returns the jobs in the order in which they are checked: never checked, then the longest unchecked first.

    The order of the jobs file decides between equals. A night over named jobs does not continue another one.

    Raises:
        UsageError: a job was named that does not exist.
    """
    night = None if only else history.unfinished_night()
    known = [(job, history.of_job(job.name)) for job in selected(jobs.jobs, only)]
    ordered = sorted(known, key=lambda pair: pair[1][-1].at if pair[1] else "")
    return [_placed(job, records, now, night) for job, records in ordered]


def selected(jobs: Sequence[Job], names: Sequence[str]) -> list[Job]:
    """Returns the jobs with these names, in their order; all for no names.

    Raises:
        UsageError: a name is not that of a job.
    """
    known = [job.name for job in jobs]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of {', '.join(known) or 'none'}."
            raise UsageError(f"found no job {name!r} in the jobs file. {one_line(hint)}")
    return [job for job in jobs if not names or job.name in names]


def order_table(order: Sequence[Scheduled], width: int) -> str:
    """Returns the jobs in the order in which the next night checks them, with their last verdict and the reason."""
    names = [each.job.name for each in order]
    return "\n".join(table([Column("order", names), Column("why", [each.why for each in order])], width))


def order_document(order: Sequence[Scheduled], problems: Sequence[str], now: datetime) -> dict[str, Any]:
    """Returns the same as a JSON document."""
    return {
        "jobs": [
            {
                "name": each.job.name,
                "why": each.why,
                "done": each.done is not None,
                "verdict": each.past[-1].verdict.kind.value if each.past else None,
                "checked_at": each.past[-1].at if each.past else None,
                "nights": len(each.past),
                "plan": str(each.job.plan),
                "has_plan": each.job.plan.exists(),
            }
            for each in order
        ],
        "problems": list(problems),
        "now": now.isoformat(timespec="seconds"),
    }


def age(at: str, now: datetime) -> str:
    """Returns how long ago a time was, in words: "20 min 0 s ago", or "3 days ago" from two days on."""
    found = instant(at)
    if found is None:
        return "at an unknown time"
    seconds = max((now - found).total_seconds(), 0.0)
    return f"{seconds / 86400:.0f} days ago" if seconds >= 2 * 86400 else f"{format_duration(seconds)} ago"


def _placed(job: Job, past: tuple[NightRecord, ...], now: datetime, night: str | None) -> Scheduled:
    # A job that ended with an error is tried again.
    tonight = [record for record in past if record.night == night and record.verdict.kind is not VerdictKind.ERROR]
    done = tonight[-1] if tonight else None
    checked = f"last checked {age(past[-1].at, now)} ({past[-1].verdict.kind.value})" if past else "never checked"
    todo = "re-check of the accepted plan" if job.plan.exists() else "first tuning, since it has no plan"
    return Scheduled(
        job, past, done, f"{checked}: {'checked already in the night that is continued' if done else todo}"
    )
