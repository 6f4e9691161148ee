"""What changed since the last steady night, and the steps that find which change is the cause."""

import shlex
from collections.abc import Sequence
from statistics import median

from autofit.core.environment import Environment
from autofit.core.printable import one_line
from autofit.nightly.comparison import Tonight
from autofit.nightly.records import NightRecord
from autofit.nightly.rule import LEAST_CHANGE, LEAST_NIGHTS, WINDOW

_DISTRIBUTIONS = {"torch": "torch", "autofit": "torch-autofit"}
"""Packages among the versions of an environment, with the name under which pip installs them."""


def changes(now: Environment, steady: NightRecord | None) -> tuple[str, ...]:
    """Returns what differs from the last steady night, as "name: value, was earlier value"."""
    if steady is None or steady.environment is None:
        return ()
    return tuple(now.differences(steady.environment))


def steps(job: str, now: Environment, steady: NightRecord | None) -> tuple[str, ...]:
    """Returns how to find the cause of a regression: each recorded change alone, and the code.

    Args:
        job: name of the job.
        now: tonight's environment.
        steady: the last night without the regression; None if there is none.
    """
    again = f"autofit nightly JOBS --job {shlex.quote(one_line(job))}"
    if steady is None or steady.environment is None:
        return (f"run the job again: {again}",)
    before = steady.environment
    found = [
        f"{_earlier(name, before.versions[name], now.versions.get(name))}, then run the job again: {again}"
        for name in sorted(before.versions)
        if before.versions[name] != now.versions.get(name)
    ]
    added = sorted(now.versions.keys() - before.versions.keys())
    found += [f"remove {name} {now.versions[name]}, which is new, then run the job again: {again}" for name in added]
    if now.threads != before.threads:
        found.append(f"set the number of threads back to {before.threads}, then run the job again: {again}")
    settings = _changed(now.settings, before.settings)
    if settings:
        found.append(f"the workload changed ({', '.join(settings)}): {_log(steady)}")
    elif not found:
        found.append(f"autofit records no change; look at what it does not record, such as data: {_log(steady)}")
        found.append("check the device: other processes, clock rates, temperature")
    found.append(f"with two commits, one good and one bad: git bisect start BAD GOOD, and in each step {again}")
    return tuple(found)


def baseline_note(tonight: Tonight, records: Sequence[NightRecord]) -> str:
    """Returns whether the baseline became slower in the same blocks; "" if that is unknown.

    Args:
        tonight: the night, in which the accepted plan became slower.
        records: the comparable nights before the change.
    """
    before = [each.baseline.rate_per_s for each in records if each.baseline is not None][-WINDOW:]
    if tonight.baseline is None or len(before) < LEAST_NIGHTS:
        return ""
    ratio = tonight.baseline.rate_per_s / median(before)
    if ratio < 1 - LEAST_CHANGE:
        return f"the baseline became {1 - ratio:.1%} slower too: look first at what both plans share"
    return f"the baseline did not become slower ({ratio - 1:+.1%}): look first at what only the accepted plan uses"


def _earlier(name: str, earlier: str, now: str | None) -> str:
    found = "now absent" if now is None else f"now {now}"
    if name in _DISTRIBUTIONS and earlier != "source":
        return f"pip install {shlex.quote(f'{_DISTRIBUTIONS[name]}=={earlier}')} ({found})"
    return f"go back to {name} {earlier} ({found})"


def _changed(now: dict[str, str], before: dict[str, str]) -> list[str]:
    return [name for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)]


def _log(steady: NightRecord) -> str:
    return f"git log --since={shlex.quote(steady.at)} lists the commits after the last steady night"
