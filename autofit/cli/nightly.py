"""`autofit nightly`: checks the jobs of a jobs file, prints the result, and writes the files that were asked for."""

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from autofit.cli.nightly_files import NightlyFiles
from autofit.cli.outcome import terminable
from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, one_line, printable
from autofit.core.units import parse_duration
from autofit.nightly import listing
from autofit.nightly.exit_codes import worst
from autofit.nightly.history import History
from autofit.nightly.job import JobsFile
from autofit.nightly.jobs_file import read_jobs
from autofit.nightly.outputs import night_json, text
from autofit.nightly.records import NightRecord
from autofit.nightly.schedule import plan_of_night
from autofit.reports.canvas import Canvas


def execute(given: argparse.Namespace) -> int:
    """Runs a night, or says what it would do. Returns the exit code of the worst job."""
    time_s = None if given.time is None else parse_duration(given.time)
    files = NightlyFiles.of(given)
    jobs = read_jobs(given.jobs)
    history = History.open(jobs.history, jobs.aside)
    if given.list or given.dry_run:
        return _listed(given, jobs, history)
    with terminable("the same command continues the night"):
        return _night(given, jobs, history, time_s, files)


def _night(
    given: argparse.Namespace, jobs: JobsFile, history: History, time_s: float | None, files: NightlyFiles
) -> int:
    from autofit.nightly.night import NightOptions, run_night  # noqa: PLC0415  # Optuna, which listing does not load

    for problem in jobs.problems:
        _say(problem)
    options = NightOptions(
        only=tuple(given.only),
        time_s=time_s,
        fail_on=given.fail_on,
        clock=Clock(start=given.began_s),
        say=(lambda line: None) if given.quiet else _say,
        show_trace=_show_trace,
    )
    result = run_night(jobs, history, options)
    past = _past(jobs, history)
    if given.json:
        print(ascii_json(night_json.rendered(result, past)))
    else:
        print(text.rendered(result, past, Canvas.of(sys.stdout)))
    try:
        files.write(result, past)
    except UsageError as error:  # on stderr, since the result above is the only document on stdout
        _say(str(error))
        return worst([result.exit_code, error.exit_code])
    return result.exit_code


def _listed(given: argparse.Namespace, jobs: JobsFile, history: History) -> int:
    """Prints the jobs with their last verdicts, or the order of a night. Nothing is run."""
    now = datetime.now(UTC)
    order = plan_of_night(jobs, history, given.only, now)
    if given.json:
        print(ascii_json(json.dumps(listing.document(order, jobs.problems, now), indent=2)))
    elif given.list:
        print(listing.jobs_table(order, now, Canvas.of(sys.stdout).width))
    else:
        print(listing.order_table(order, Canvas.of(sys.stdout).width))
    for problem in jobs.problems:
        _say(problem)
    return UsageError.exit_code if jobs.problems else 0


def _past(jobs: JobsFile, history: History) -> Mapping[str, tuple[NightRecord, ...]]:
    names = dict.fromkeys([*(job.name for job in jobs.jobs), *history.jobs()])
    return {name: history.of_job(name) for name in names}


def _say(line: str) -> None:
    """Prints a line on stderr. Problems are printed also with --quiet."""
    print(f"autofit: {one_line(line)}", file=sys.stderr, flush=True)


def _show_trace(trace: str) -> None:
    print(printable(trace).rstrip(), file=sys.stderr, flush=True)
