"""What `autofit tune` says of a finding, after it has proven its answer.

The search does not know the doctor, and the bench may run in a child process: both get this function by its name.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from autofit.core.briefing import Examiner
from autofit.devices.base import Device
from autofit.doctor.diagnose import observed, roots_of
from autofit.doctor.diagnosis import Diagnosis, Finding
from autofit.doctor.loops import ALONE
from autofit.doctor.session import COMPILED, Scope, Session
from autofit.search.evidence import FOUND_BY_DOCTOR
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.workload import Workload

LEAST_RATIO = 0.05
"""Smallest share of the peak that is worth a line."""


BRIEF = Scope(steps=3, runs=False)
"""Fewer steps than the doctor's. Growth, which takes more to see, is not what is looked for."""


def finding(
    workload: Workload, device: Device, step: TrainStep, batch: Callable[[], StepBatch], examiner: Examiner
) -> str:
    """Returns the largest finding in the steps of a plan, in a sentence; "" if none takes much of the peak.

    No step runs with a change. Nothing is found while something else is observed in this process.

    Args:
        workload: what is trained. The caller restores it.
        device: where it is trained.
        step: the train step of the plan.
        batch: makes the batch of a step.
        examiner: names the command or the call that says more.
    """
    found = looked_at(workload, device, step, batch, BRIEF)
    return "" if found is None else sentence(found, examiner.more)


def looked_at(
    workload: Workload, device: Device, step: TrainStep, batch: Callable[[], StepBatch], scope: Scope
) -> Diagnosis | None:
    """Returns what is found in further steps of a plan; None while something else is observed in this process."""
    if not ALONE.acquire(blocking=False):
        return None
    with ExitStack() as undo:
        undo.callback(ALONE.release)
        session = Session("", partial(roots_of, workload), [step.model], device, scope=scope)
        undo.callback(session.close)
        return observed(session, step, batch)


def sentence(found: Diagnosis, more: str) -> str:
    """Returns the largest finding of a diagnosis at the peak, and how many more there are; "" if none is large.

    Nothing is said of a failed step. Compiled code is observed uncompiled, and the sentence says so.
    """
    large = [each for each in found.findings if share(each, found) > LEAST_RATIO]
    if not large or found.failed:
        return ""
    largest = max(large, key=lambda each: share(each, found))
    assert largest.size is not None, "its share is that of its size"
    bound = f"{largest.size.bound} " if largest.size.bound else ""
    others = f", and {len(large) - 1} more" if len(large) > 1 else ""
    peak = "the peak of uncompiled steps" if COMPILED in found.notes else "the peak"
    return f"{FOUND_BY_DOCTOR}{largest.what}: {bound}{share(largest, found):.0%} of {peak}{others}; {more} says more"


def share(each: Finding, found: Diagnosis) -> float:
    """Returns what a finding takes of the peak, from 0 to 1; 0 if it does not grow or costs something else."""
    peak_bytes = None if each.size is None or each.minor else each.size.peak_bytes
    return 0.0 if not peak_bytes else min(peak_bytes / max(found.peak_bytes, 1), 1.0)
