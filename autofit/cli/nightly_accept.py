"""`autofit nightly accept`: makes the proposal of a night the accepted plan of a job, or its level the normal one."""

import argparse
from datetime import UTC, datetime
from uuid import uuid4

from autofit.cli.nightly_changes import change
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, one_line
from autofit.nightly import proposals
from autofit.nightly.history import History
from autofit.nightly.jobs_file import read_jobs
from autofit.nightly.judging import level_accepted
from autofit.nightly.schedule import selected


def execute(given: argparse.Namespace) -> int:
    """Replaces the accepted plan, or accepts the level of an open regression. Prints what changed."""
    return _accept_level(given) if given.level else change(given, proposals.accept, "accepted")


def _accept_level(given: argparse.Namespace) -> int:
    """Appends a record to the history that makes the present level of a job the normal one."""
    jobs = read_jobs(given.jobs)
    (job,) = selected(jobs.jobs, [given.job])
    history, now = History.open(jobs.history, jobs.aside), datetime.now(UTC).isoformat(timespec="seconds")
    record = level_accepted(history.of_job(job.name), id=uuid4().hex, night=now, at=now)
    if record is None:
        raise UsageError(
            f"found no open regression of the job {job.name}; expected one that a night has reported. Nothing was "
            "changed. `autofit nightly --list` shows the last verdicts."
        )
    history.append(record)
    if given.json:
        print(ascii_json(record.model_dump_json(by_alias=True, indent=2)))
    else:
        print(one_line(f"{job.name}: {record.verdict.reason}"))
    return 0
