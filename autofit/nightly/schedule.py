"""Schedule: in which order a night checks its jobs, and why. The job that was not checked for longest comes first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from autofit.core.errors import UsageError
from autofit.core.printable import one_line
from autofit.core.units import format_duration
from autofit.nightly.job import Job
from autofit.nightly.records import NightRecord, VerdictKind


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A job in the order of a night.

    Attributes:
        job: the job.
        past: its records, oldest first.
        done: whether the night that is continued has checked it already.
        why: why it has its place, and what will be done, in words.
    """

    job: Job
    past: tuple[NightRecord, ...]
    done: bool
    why: str


def scheduled(
    jobs: Sequence[Job], past: Mapping[str, tuple[NightRecord, ...]], now: datetime, night: str | None = None
) -> list[Scheduled]:
    """Returns the jobs in the order in which they are checked: never checked, then the longest unchecked first.

    Args:
        jobs: the jobs, in the order of the jobs file, which decides between equals.
        past: records of each job, oldest first.
        now: the present time.
        night: the night that is continued; None for a new one.
    """
    known = [(job, past.get(job.name, ())) for job in jobs]
    ordered = sorted(known, key=lambda pair: pair[1][-1].at if pair[1] else "")
    return [_placed(job, records, now, night) for job, records in ordered]


def selected(jobs: Sequence[Job], names: Sequence[str], others: Sequence[str] = ()) -> list[Job]:
    """Returns the jobs with these names; all for no names.

    Args:
        jobs: the jobs that can run.
        names: the names that the user gave.
        others: names of jobs that cannot run because of an error in the jobs file.

    Raises:
        UsageError: a name is not that of a job.
    """
    known = [job.name for job in jobs]
    for name in names:
        if name not in known and name not in others:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of {', '.join(known) or 'none'}."
            raise UsageError(f"found no job {name!r} in the jobs file. {one_line(hint)}")
    return [job for job in jobs if not names or job.name in names]


def age(at: str, now: datetime) -> str:
    """Returns how long ago a time was, in words: "20 min 0 s ago", or "3 days ago" from two days on."""
    seconds = max((now - moment(at)).total_seconds(), 0.0)
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days ago"
    return f"{format_duration(seconds)} ago"


def moment(at: str) -> datetime:
    """Returns a time in ISO 8601; without a time zone it is UTC."""
    found = datetime.fromisoformat(at)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _placed(job: Job, past: tuple[NightRecord, ...], now: datetime, night: str | None) -> Scheduled:
    done = any(r.night == night and r.verdict.kind is not VerdictKind.ERROR for r in past)
    checked = f"last checked {age(past[-1].at, now)} ({past[-1].verdict.kind.value})" if past else "never checked"
    if done:
        return Scheduled(job, past, done, f"{checked}: already checked in the night that is continued")
    todo = "re-check of the accepted plan" if job.plan.exists() else "first tuning, since it has no plan"
    return Scheduled(job, past, done, f"{checked}: {todo}")
