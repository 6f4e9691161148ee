"""`autofit nightly`: checks the jobs of a jobs file, prints what was found, and writes the files that were asked for."""

import argparse
import json
import sys
from collections.abc import Mapping

from autofit.cli.interrupting import terminable
from autofit.cli.nightly_files import NightlyFiles
from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, one_line, printable
from autofit.core.units import parse_duration
from autofit.nightly import listing
from autofit.nightly.exit_codes import worst
from autofit.nightly.history import History
from autofit.nightly.job import JobsFile
from autofit.nightly.jobs_file import read_jobs
from autofit.nightly.night import NightOptions, plan_of_night, run_night, utc_now
from autofit.nightly.outputs import night_json, text
from autofit.nightly.records import NightRecord
from autofit.reports.canvas import Canvas


def execute(given: argparse.Namespace) -> int:
    """Runs a night, or says what it would do. Returns the exit code of the worst job."""
    options = _options(given)
    files = NightlyFiles.of(given)
    jobs = read_jobs(given.jobs)
    history = History.open(jobs.history, jobs.aside)
    if given.list or given.dry_run:
        return _listed(given, jobs, history, options)
    with terminable("the same command continues the night"):
        return _night(given, jobs, history, options, files)


def _night(
    given: argparse.Namespace, jobs: JobsFile, history: History, options: NightOptions, files: NightlyFiles
) -> int:
    for problem in jobs.problems:
        _warn(problem)
    result = run_night(jobs, history, options)
    past = _past(jobs, history)
    if given.json:
        print(ascii_json(night_json.rendered(result, past)))
    else:
        print(text.rendered(result, past, Canvas.of(sys.stdout)))
    try:
        files.write(result, past)
    except UsageError as error:  # on stderr, since the result above is the only document on stdout
        _warn(str(error))
        return worst([result.exit_code, error.exit_code])
    return result.exit_code


def _listed(given: argparse.Namespace, jobs: JobsFile, history: History, options: NightOptions) -> int:
    """Prints the jobs with their last verdicts, or the order of a night. Nothing is run."""
    order = plan_of_night(jobs, history, options)
    now = utc_now()
    if given.json:
        print(ascii_json(json.dumps(listing.document(order, jobs.problems, now), indent=2)))
    elif given.list:
        print(listing.jobs_table(order, now, Canvas.of(sys.stdout).width))
    else:
        print(listing.order_table(order, Canvas.of(sys.stdout).width))
    for problem in jobs.problems:
        _warn(problem)
    return UsageError.exit_code if jobs.problems else 0


def _options(given: argparse.Namespace) -> NightOptions:
    def show(line: str) -> None:
        print(f"autofit: {one_line(line)}", file=sys.stderr, flush=True)

    def show_trace(trace: str) -> None:
        print(printable(trace).rstrip(), file=sys.stderr, flush=True)

    return NightOptions(
        only=tuple(given.only),
        time_s=None if given.time is None else parse_duration(given.time),
        fail_on=given.fail_on,
        clock=Clock(start=given.began_s),
        say=(lambda line: None) if given.quiet else show,
        show_trace=show_trace,
    )


def _past(jobs: JobsFile, history: History) -> Mapping[str, tuple[NightRecord, ...]]:
    names = dict.fromkeys([*(job.name for job in jobs.jobs), *history.jobs()])
    return {name: history.of_job(name) for name in names}


def _warn(line: str) -> None:
    print(f"autofit: {one_line(line)}", file=sys.stderr, flush=True)
