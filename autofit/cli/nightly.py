"""`autofit nightly`: checks the jobs of a jobs file, prints the result, and writes the files that were asked for.

Also its actions: `autofit nightly init` writes a first jobs file, `autofit nightly accept` accepts a plan or a level.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from autofit.cli import nightly_init
from autofit.cli.outcome import terminable
from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, one_line, printable
from autofit.core.units import parse_duration
from autofit.files import followed, head_of, write_atomically
from autofit.nightly import outputs, trend
from autofit.nightly.history import History
from autofit.nightly.jobs import JobsFile, read_jobs
from autofit.nightly.outputs import MARK
from autofit.nightly.records import NightRecord, NightResult
from autofit.nightly.schedule import order_document, order_table, scheduled, selected
from autofit.nightly.verdict import level_accepted
from autofit.reports.canvas import Canvas

_HEAD_BYTES = 512
_FORMATS: Mapping[str, Callable[[NightResult, outputs.History], str]] = {
    "markdown": outputs.to_markdown,
    "html": trend.to_html,
}


def execute(given: argparse.Namespace) -> int:
    """Runs a night, or says what it would do, or runs an action. Returns the exit code of the worst job."""
    actions = {"nightly init": nightly_init.execute, "nightly accept": _accept}
    if (action := actions.get(given.command)) is not None:
        return action(given)
    time_s = None if given.time is None else parse_duration(given.time)
    files = {kind: Path(path).absolute() for kind in _FORMATS if (path := getattr(given, kind)) is not None}
    for path in files.values():  # before anything is measured
        _target(path, force=given.force)
    jobs = read_jobs(given.jobs)
    history = History.open(jobs.history, jobs.aside)
    if given.dry_run:
        return _dry_run(given, jobs, history)
    with terminable("the same command continues the night"):
        return _night(given, jobs, history, time_s, files)


def _night(
    given: argparse.Namespace, jobs: JobsFile, history: History, time_s: float | None, files: Mapping[str, Path]
) -> int:
    from autofit.nightly.night import NightOptions, run_night, worst  # noqa: PLC0415  # Optuna, unused in a dry run

    for problem in jobs.problems:
        _say(problem)
    options = NightOptions(
        only=tuple(given.only),
        time_s=time_s,
        fail_on=given.fail_on,
        clock=Clock(start=given.began_s),
        say=(lambda line: None) if given.quiet else _say,
        show_trace=lambda trace: print(printable(trace).rstrip(), file=sys.stderr, flush=True),
    )
    if given.on == "ray":
        from autofit.nightly.on_ray import run_on_ray  # noqa: PLC0415

        result = run_on_ray(jobs, options)
        history = History.open(jobs.history, jobs.aside)
    else:
        result = run_night(jobs, history, options)
    names = dict.fromkeys([*(job.name for job in jobs.jobs), *history.jobs()])
    past: dict[str, tuple[NightRecord, ...]] = {name: history.of_job(name) for name in names}
    if given.json:
        print(ascii_json(outputs.to_json(result)))
    else:
        print(outputs.to_text(result, past, Canvas.of(sys.stdout)))
    codes = [result.exit_code]
    for kind, path in files.items():
        try:
            _write(path, _FORMATS[kind](result, past), force=given.force)
        except UsageError as error:  # on stderr, since the result above is the only document on stdout
            _say(f"{error} The records of the night are in the history: only this file is missing.")
            codes.append(error.exit_code)
    return worst(codes)


def _dry_run(given: argparse.Namespace, jobs: JobsFile, history: History) -> int:
    """Prints the order of a night. Nothing is run."""
    now = datetime.now(UTC)
    order = scheduled(jobs, history, now, given.only)
    if given.json:
        print(ascii_json(json.dumps(order_document(order, jobs.problems, now), indent=2)))
    else:
        print(order_table(order, Canvas.of(sys.stdout).width))
    for problem in jobs.problems:
        _say(problem)
    return UsageError.exit_code if jobs.problems else 0


def _accept(given: argparse.Namespace) -> int:
    """Accepts the better plan that waits beside the plan of a job, or with `--level` the present level of the job."""
    jobs = read_jobs(given.jobs)
    (job,) = selected(jobs.jobs, [given.job])
    if given.level:
        history, now = History.open(jobs.history, jobs.aside), datetime.now(UTC).isoformat(timespec="seconds")
        record = level_accepted(history.of_job(job.name), id=uuid4().hex, night=now, at=now)
        if record is None:
            raise UsageError(
                f"found no open regression of the job {job.name}; expected one that a night has reported. Nothing was "
                "changed. `autofit nightly --dry-run` shows the last verdicts."
            )
        history.append(record)
        done = record.verdict.reason
    else:
        from autofit.nightly.retune import accept, previous_path  # noqa: PLC0415  # Optuna

        plan, kept = accept(job.plan).plan, previous_path(job.plan)
        done = f"accepted {plan}; `autofit diff {kept.name} {job.plan.name}` says what changed"
    print(ascii_json(json.dumps({"job": job.name, "done": done}, indent=2)) if given.json else f"{job.name}: {done}")
    return 0


def _write(path: Path, text: str, *, force: bool) -> None:
    target = _target(path, force=force)
    try:
        write_atomically(target, text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"{path} was not written: {error.strerror or error}. Choose another path.") from None


def _target(path: Path, *, force: bool) -> Path:
    """Returns where a file is written: links are followed, so that they are kept.

    Raises:
        UsageError: there is something that autofit did not write, or its directory does not exist.
    """
    try:
        target = followed(path)
        if not target.parent.is_dir():
            raise UsageError(f"{path} cannot be written: {target.parent} is not a directory. Choose another path.")
        if target.exists() and not (target.is_file() and (force or _is_earlier(target))):
            raise UsageError(
                f"{path} was not written: found something there that an earlier night did not write; expected "
                "nothing, or an earlier file of this kind. Move it away, or replace a file with --force."
            )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: found {error}. Choose another path.") from None
    return target


def _is_earlier(path: Path) -> bool:
    head = head_of(path, _HEAD_BYTES)
    return not head.strip() or MARK.encode() in head


def _say(line: str) -> None:
    """Prints a line on stderr. Problems are printed also with --quiet."""
    print(f"autofit: {one_line(line)}", file=sys.stderr, flush=True)
