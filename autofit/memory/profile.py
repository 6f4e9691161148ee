"""Profile: the memory of one optimizer step of a plan over time, and what makes up its peak, both from its trace."""

from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from autofit.core.account import Account
from autofit.memory.breakdown import Breakdown, anatomy
from autofit.memory.peak import MemoryUse
from autofit.memory.trace import Trace

POINTS = 240
"""Number of points of a timeline: about one for every two pixels of a drawing. Each phase has at least one."""


class StepPhase(BaseModel):
    """A part of an optimizer step.

    Attributes:
        name: "forward", "backward" or "optimizer".
        start: index of its first point in `Profile.live_bytes`.
        end: index after its last point.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    start: int
    end: int


class Profile(BaseModel):
    """The memory of one optimizer step.

    Attributes:
        breakdown: what makes up the peak.
        peak_bytes: peak by the trace, in the reading that is compared with the budget, without the correction by
            measured plans.
        live_bytes: bytes of live tensors over the last traced step. The points are allocations and releases in order,
            not points in time: each value is the maximum over an equal number of them, so no maximum is lost. The
            allocator's cache, the context and libraries are not included, so on an accelerator the largest value is
            below `peak_bytes`.
        phases: the parts of the step, in order. A step with accumulation has forward and backward several times; a
            trace has at most `autofit.memory.trace.MOST_PARTS` micro batches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    breakdown: Breakdown
    peak_bytes: int
    live_bytes: tuple[int, ...]
    phases: tuple[StepPhase, ...]


def profile(trace: Trace, use: MemoryUse, account: Account) -> Profile:
    """Returns the profile of a plan.

    Args:
        trace: of the plan.
        use: what the trace takes on the device (`autofit.memory.peak.memory_use`).
        account: how the device accounts for memory.
    """
    breakdown = anatomy(
        trace,
        use.peak.peak_event,
        use.peak.name,
        use.allocated_bytes,
        use.reserved_bytes,
        account.outside_bytes,
        use.waiting_bytes,
    )
    live = _live_bytes(trace)
    points, phases = list[int](), list[StepPhase]()
    marks = _last_step(trace)
    total = max(marks[-1][1] - marks[0][1], 1)
    for (name, begin), (_, end) in pairwise(marks):
        if end <= begin:
            continue
        share = max(round(POINTS * (end - begin) / total), 1)
        start = len(points)
        points += [value + use.waiting_bytes for value in _maxima(live[begin:end], share)]
        phases.append(StepPhase(name=name, start=start, end=len(points)))
    return Profile(breakdown=breakdown, peak_bytes=use.judged_bytes, live_bytes=tuple(points), phases=tuple(phases))


def _last_step(trace: Trace) -> list[tuple[str, int]]:
    """Returns the phases of the last step as name and first event, with the end of the trace as the last entry."""
    steps = [mark for mark in trace.marks if mark.name.startswith("step ")]
    if not steps:
        return [("step", 0), ("", len(trace.events))]
    prefix = " ".join(steps[-1].name.split(" ")[:2]) + " "
    found = [(mark.name.removeprefix(prefix), mark.event) for mark in steps if mark.name.startswith(prefix)]
    return [*found, ("", trace.marks[-1].event)]


def _live_bytes(trace: Trace) -> list[int]:
    """Returns the bytes of live tensors after each event."""
    live, found = 0, list[int]()
    for event in trace.events:
        live += trace.tensors.sizes[event] if event >= 0 else -trace.tensors.sizes[~event]
        found.append(live)
    return found


def _maxima(values: list[int], count: int) -> list[int]:
    """Returns the maximum of each of at most `count` stretches of equal length."""
    count = min(count, len(values))
    edges = [len(values) * number // count for number in range(count + 1)]
    return [max(values[start:end]) for start, end in pairwise(edges)]
