"""The text of a first jobs file: one job, and each further key as a comment with an example."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit import strict_yaml
from autofit.nightly.job import is_file, split
from autofit.nightly.jobs_file import JOBS_SCHEMA

_HEAD = """\
# Jobs of `autofit nightly FILE`. Each night measures the accepted plans again and reports what has changed.
# Relative paths are relative to this file.
"""
_OF_FILE = {
    "history": (".autofit/study.journal", "or a database URL, {env: NAME} or {file: PATH}"),
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
    "accept": ("propose", "or auto, which replaces the plan with a better one"),
    "on_regression": ('["./notify", "--team", "ml"]', "gets the summary on its standard input"),
}
"""Example and meaning of each key that is not required."""


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
