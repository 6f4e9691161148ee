"""`autofit nightly`: checks the jobs of a jobs file, prints the result, and writes the files that were asked for.

Also its actions: `autofit nightly init` writes a first jobs file, `autofit nightly accept` accepts a plan or a level.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from autofit import strict_yaml
from autofit.cli import values
from autofit.cli.outcome import say, terminable
from autofit.cli.saving import check_output
from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, one_line, printable
from autofit.core.units import parse_duration
from autofit.files import followed, unwritable, write_atomically
from autofit.nightly import outputs
from autofit.nightly.history import History, order_document, order_table, scheduled, selected
from autofit.nightly.jobs import JOBS_SCHEMA, JobsFile, is_file, read_jobs, split
from autofit.nightly.records import NightRecord, NightResult
from autofit.nightly.verdict import level_accepted
from autofit.reports import writing
from autofit.reports.canvas import Canvas

_FORMATS: Mapping[str, Callable[[NightResult, outputs.History], str]] = {
    "markdown": outputs.to_markdown,
    "html": outputs.to_html,
}


def execute(given: argparse.Namespace) -> int:
    """Runs a night, or says what it would do. Returns the exit code of the worst job."""
    time_s = None if given.time is None else parse_duration(given.time)
    files = {kind: Path(path).absolute() for kind in _FORMATS if (path := getattr(given, kind)) is not None}
    for path in files.values():  # before anything is measured
        check_output(path, writing.check_replaceable, force=given.force)
    jobs = read_jobs(given.jobs)
    history = History(jobs.history, jobs.mark)
    if given.dry_run:
        return _dry_run(given, jobs, history)
    with terminable("the same command continues the night"):
        return _night(given, jobs, history, time_s, files)


def _night(
    given: argparse.Namespace, jobs: JobsFile, history: History, time_s: float | None, files: Mapping[str, Path]
) -> int:
    from autofit.nightly.night import NightOptions, run_night, run_on_ray, worst  # noqa: PLC0415  # Optuna, unused in a dry run

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
        result = run_on_ray(jobs, history, options)
        history = History(jobs.history, jobs.mark)
    else:
        result = run_night(jobs, history, options)
    past = dict[str, Sequence[NightRecord]]()
    if files or not given.json:  # a history may be long
        names = dict.fromkeys([*(job.name for job in jobs.jobs), *history.jobs()])
        past = {name: history.of_job(name) for name in names}
    print(ascii_json(outputs.to_json(result)) if given.json else outputs.to_text(result, past, Canvas.of(sys.stdout)))
    codes = [result.exit_code]
    for kind, path in files.items():
        try:
            writing.write(_FORMATS[kind](result, past), path, force=given.force)
        except UsageError as error:  # on stderr, since the result above is the only document on stdout
            if history.unwritten:
                _say(str(error))
            else:
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


def accept(given: argparse.Namespace) -> int:
    """Accepts the better plan that waits beside the plan of a job, or with `--level` the present level of the job."""
    jobs = read_jobs(given.jobs)
    (job,) = selected(jobs.jobs, [given.job])
    if given.level:
        history, now = History(jobs.history, jobs.mark), datetime.now(UTC).isoformat(timespec="seconds")
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


def init(given: argparse.Namespace) -> int:
    """Writes a first jobs file, or prints it for "-"."""
    to_stdout = given.output == "-"
    folder = Path.cwd() if to_stdout else Path(given.output).absolute().parent
    if given.time is not None:
        parse_duration(given.time)  # raises before anything is written
    memory = values.memory(given.memory)
    chosen = {"device": given.device, "global_batch": given.global_batch, "memory": memory, "time": given.time}
    content = first_jobs_file(given.target, folder=folder, name=given.name, given=chosen)
    if not to_stdout:
        _write(Path(given.output), content, force=given.force)
        where, _ = split(given.target)
        if is_file(where) and not Path(where).expanduser().exists():
            _say(f"{where} does not exist: the job will fail until it does")
    if given.json:
        print(ascii_json(json.dumps({"output": given.output, "text": content}, indent=2)))
    elif to_stdout:
        print(printable(content), end="")
    elif not given.quiet:
        how = f"`autofit nightly {given.output} --dry-run` says what a night does with it"
        _say(f"jobs file written to {given.output}; {how}")
    return 0


def _write(path: Path, content: str, *, force: bool) -> None:
    try:
        target = followed(path)
        if target.exists() and not (target.is_file() and force):
            raise UsageError(
                f"{path} was not written: found something there; expected no file. Add the job to it by hand, choose "
                "another path with -o, or replace a file with --force."
            )
        write_atomically(target, content.encode())
    except OSError as error:
        raise unwritable(path, error) from None


_HEAD = """\
# Jobs of `autofit nightly FILE`. Each night measures the accepted plans again and reports what has changed.
# Relative paths are relative to this file.
"""
_OF_FILE = {
    "history": (".autofit/study.journal", "or a database URL, env:NAME or file:PATH"),
    "time": ("2h", "for the whole night"),
    "defaults": ("{}", "values that all jobs share"),
}
_OF_JOB = {
    "args": ("{depth: 4}", "keyword arguments of the function"),
    "device": ("cuda:0", "without it, the best device that is available"),
    "global_batch": ("256", "samples per optimizer step, kept exactly"),
    "max_global_batch": ("1024", "limit on it if global_batch is not given"),
    "memory": ("20GiB", "budget; without it, the available memory less a safety margin"),
    "time": ("10min", "for tuning this job again; without it, no limit"),
    "objective": ("samples", "or tokens"),
    "numerics": ("mixed", "or exact, or any"),
    "mode": ("train", "or inference"),
    "max_grad_norm": ("1.0", "clip gradients to this L2 norm"),
    "strategies": ("[batching, precision]", "techniques to search; without it, all that apply"),
    "without": ("[checkpointing]", "techniques not to search"),
    "gpus": ("1", "of the Ray task, for --on ray"),
    "accept": ("propose", "or auto, which replaces the plan with a better one"),
    "on_regression": ('["./notify", "--team", "ml"]', "gets the summary on its standard input"),
}
"""Example and meaning of each key that is not required."""


def first_jobs_file(
    target: str, *, folder: str | Path = ".", name: str | None = None, given: Mapping[str, Any] | None = None
) -> str:
    """Returns the text of a jobs file with one job, to be stored in a folder.

    A relative target is relative to the working directory. Without a name, that of the job is derived from the target.
    `given` has values of further keys of the job, such as `{"device": "cuda"}`; None is left out.
    """
    where, function = split(target)
    if name is None:  # that of the file or module
        stem = re.split(r"[/\\]", where)[-1].removesuffix(".py").rpartition(".")[2]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:64] or "job"
    if is_file(where) and not where.startswith("~") and not os.path.isabs(where):
        target = f"{os.path.relpath(where, folder)}{function}"
    job = {"name": name, "workload": target, "plan": f"plans/{name}.yaml"}
    job |= {key: value for key, value in (given or {}).items() if value is not None}
    first, *others = strict_yaml.dump(job).rstrip("\n").split("\n")
    lines = [f"schema: {JOBS_SCHEMA}", *_examples(_OF_FILE, ()), "jobs:", f"  - {first}"]
    lines += [f"    {line}" for line in (*others, *_examples(_OF_JOB, job))]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _examples(keys: Mapping[str, tuple[str, str]], present: Any) -> list[str]:
    """Returns each key that is not present as a comment."""
    return [f"# {f'{key}: {text}':<44}  # {about}" for key, (text, about) in keys.items() if key not in present]


def _say(line: str) -> None:
    """Prints a line on stderr. Problems are printed also with --quiet."""
    say(one_line(line))
