"""What came of a plan on all ranks, from what each of them says."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from autofit.core.measurement import Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.failures.classify import classify
from autofit.failures.evidence import collect, scrub

LOST = re.compile(r"gloo|NCCL|Connection (?:closed|reset|refused)|[Tt]imed out (?:waiting|after)|process ?group", re.I)
"""What an error says of which the cause is another rank."""
UNFINISHED = "Expected to have finished reduction"
"""What `DistributedDataParallel` says in the step after one that left some parameters without a gradient."""
LEFT_OUT = (
    "the step before left trained parameters without a gradient, which the other ranks waited for; "
    "to avoid it, pin find_unused_parameters=True, so that ranks look for them"
)
APART = (
    "the ranks no longer waited for each other. Where parameters are divided, all ranks have to run the same blocks in "
    "each pass"
)
FAILED = "failed"
"""How what a rank says of the steps of a long proof begins if one of them has failed."""
LEAST_PACES, STRAGGLES = 4, 1.5
"""Number of rehearsals from which ranks are compared by their speed, and the ratio at which one of them is named."""


def joined_outcome(leaders: Outcome, said: Sequence[dict[str, Any]], budget_bytes: int) -> Outcome:
    """Returns the outcome of a plan on all ranks, from that of the leader and what each follower says.

    Where ranks failed, the cause is the failure that is not a consequence of another rank's. The peak is the worst.
    """
    failures = [None if each["failure"] is None else Outcome.model_validate(each["failure"]) for each in said]
    outcomes = [leaders, *failures]
    failed = [each for each in outcomes if each is not None and not each.measured]
    if failed and all(LOST.search(each.reason) for each in failed):
        return Outcome(status=Status.TIMED_OUT, reason=APART, duration_s=leaders.duration_s)
    if (worst := worst_of(outcomes)) is not None:
        late = worst.status is Status.TIMED_OUT and any(failures)
        return worst.model_copy(update={"reason": f"{worst.reason}; {APART}"}) if late else worst
    peaks = [None, *(each["memory"] for each in said)]
    others = [(rank, Memory.model_validate(each)) for rank, each in enumerate(peaks) if each is not None]
    if leaders.measurement is None or not others:
        return leaders
    rank, memory = max(others, key=lambda each: each[1].judged_bytes)
    if memory.judged_bytes <= leaders.measurement.memory.judged_bytes:
        return leaders
    found = leaders.with_measured(memory=memory)
    if memory.judged_bytes <= budget_bytes:
        return found
    peak, budget = format_bytes(memory.judged_bytes), format_bytes(budget_bytes)
    reason = f"rank {rank}: its peak {peak} is above the budget {budget}"
    return found.model_copy(update={"status": Status.OVER_BUDGET, "reason": reason})


def straggler(paces: Sequence[Sequence[float]]) -> str:
    """Returns which rank takes longer than the others for the same work, in words; "" if none does.

    Args:
        paces: seconds of a step of each rank alone, in several rehearsals. The median over these decides.
    """
    if len(paces) < LEAST_PACES:
        return ""
    ratios = {
        rank: median(pace[rank] / median([*pace[:rank], *pace[rank + 1 :]]) for pace in paces)
        for rank in range(len(paces[0]))
    }
    slowest = max(ratios, key=lambda rank: ratios[rank])
    if ratios[slowest] < STRAGGLES:
        return ""
    return f"rank {slowest} takes {ratios[slowest]:.1f} times as long as the others for the same work"


def worst_of(outcomes: Sequence[Outcome | None]) -> Outcome | None:
    """Returns the failure that all ranks report, named by its rank; None if none failed.

    Lack of memory comes first: a smaller batch may help. Then what is not the consequence of another rank's failure.
    """
    failed = [(rank, each) for rank, each in enumerate(outcomes) if each is not None and not each.measured]
    if not failed:
        return None

    def order(each: tuple[int, Outcome]) -> tuple[bool, bool]:
        return not each[1].status.does_not_fit, LOST.search(each[1].reason) is not None

    rank, found = min(failed, key=order)
    reason = LEFT_OUT if UNFINISHED in found.reason else found.reason
    return found.model_copy(update={"reason": f"rank {rank}: {reason}"})


def failure_of(error: BaseException, device: Device) -> Outcome:
    """Returns the outcome of a step that failed, and lets go of what it held."""
    evidence = collect(error)
    scrub(error)
    verdict = classify(evidence, device_is_host=device.is_host)
    return Outcome(status=verdict.status, reason=verdict.reason, traceback_text=evidence.traceback_text)
