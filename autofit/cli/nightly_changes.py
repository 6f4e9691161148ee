"""What `autofit nightly accept` and `autofit nightly revert` share: finding the job, and reporting the change."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from autofit.core.printable import ascii_json, printable
from autofit.nightly.jobs_file import read_jobs
from autofit.nightly.proposals import previous_path
from autofit.nightly.schedule import selected


def change(given: argparse.Namespace, action: Callable[[Path], str], name: str) -> int:
    """Changes the accepted plan of a job, and prints how.

    Args:
        given: the command line.
        action: changes the plan at a path, and returns what changed.
        name: name of the action, in the past tense.

    Raises:
        UsageError: the jobs file cannot be read, or has no such job.
        PlanFileError: there is nothing to change to, or a file cannot be written.
    """
    (job,) = selected(read_jobs(given.jobs).jobs, [given.job])
    changed = action(job.plan)
    if given.json:
        paths = {"plan": str(job.plan), "previous": str(previous_path(job.plan))}
        print(ascii_json(json.dumps({"job": job.name, "action": name, **paths, "change": changed}, indent=2)))
        return 0
    print(changed)
    if not given.quiet:
        print(f"autofit: {name}: {printable(str(job.plan))}; the other plan is kept as "
              f"{printable(previous_path(job.plan).name)}", file=sys.stderr)  # fmt: skip
    return 0
