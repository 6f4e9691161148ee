"""`autofit nightly init`: writes a first jobs file."""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit import strict_yaml
from autofit.cli import values
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, printable
from autofit.core.units import parse_duration
from autofit.files import followed, write_atomically
from autofit.nightly.jobs import JOBS_SCHEMA, is_file, split

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


def execute(given: argparse.Namespace) -> int:
    """Writes the file, or prints it for "-"."""
    to_stdout = given.output == "-"
    folder = Path.cwd() if to_stdout else Path(given.output).absolute().parent
    if given.time is not None:
        parse_duration(given.time)  # raises before anything is written
    chosen = {
        "device": given.device,
        "global_batch": given.global_batch,
        "memory": values.memory(given.memory),
        "time": given.time,
    }
    content = first_jobs_file(given.target, folder=folder, name=given.name, given=chosen)
    if not to_stdout:
        _write(Path(given.output), content, force=given.force)
    where, _ = split(given.target)
    if not to_stdout and is_file(where) and not Path(where).expanduser().exists():
        print(f"autofit: {printable(where)} does not exist: the job will fail until it does", file=sys.stderr)
    if given.json:
        done = {"output": given.output, "text": content}
        print(ascii_json(json.dumps(done, indent=2)))
    elif to_stdout:
        print(printable(content), end="")
    elif not given.quiet:
        print(f"autofit: jobs file written to {printable(given.output)}; `autofit nightly {printable(given.output)} "
              "--dry-run` says what a night does with it", file=sys.stderr)  # fmt: skip
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
        raise UsageError(
            f"{path} was not written: {error.strerror or error}; expected a directory that exists and has "
            "space. Choose another path with -o."
        ) from None


def first_jobs_file(
    target: str, *, folder: str | Path = ".", name: str | None = None, given: Mapping[str, Any] | None = None
) -> str:
    """Returns the text of a jobs file with one job.

    Args:
        target: file or module with the function of the workload, such as train.py:make_workload. A relative path is
            relative to the working directory.
        folder: folder in which the text will be stored.
        name: name of the job. None derives it from the target.
        given: values of further keys of the job, such as `{"device": "cuda", "global_batch": 256}`; None is left out.
    """
    name = _name(target) if name is None else name
    job = {"name": name, "workload": _relative(target, Path(folder)), "plan": f"plans/{name}.yaml"}
    job |= {key: value for key, value in (given or {}).items() if value is not None}
    lines = [f"schema: {JOBS_SCHEMA}", *_examples(_OF_FILE, ()), "jobs:"]
    lines += [f"  - {line}" if at == 0 else f"    {line}" for at, line in enumerate(_dumped(job))]
    lines += [f"    {line}" for line in _examples(_OF_JOB, job)]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _dumped(job: Mapping[str, Any]) -> list[str]:
    return strict_yaml.dump(dict(job)).rstrip("\n").split("\n")


def _examples(keys: Mapping[str, tuple[str, str]], present: Any) -> list[str]:
    """Returns each key that is not present as a comment."""
    return [f"# {f'{key}: {text}':<44}  # {about}" for key, (text, about) in keys.items() if key not in present]


def _name(target: str) -> str:
    """Returns a name for the job of a target: the name of its file or module."""
    stem = re.split(r"[/\\]", split(target)[0])[-1].removesuffix(".py").rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:64] or "job"


def _relative(target: str, folder: Path) -> str:
    """Returns a target as seen from a folder. Modules and absolute paths stay as they are."""
    where, function = split(target)
    if not is_file(where) or where.startswith("~") or os.path.isabs(where):
        return target
    return f"{os.path.relpath(where, folder)}{function}"
