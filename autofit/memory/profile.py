"""Profile: the memory of one optimizer step of a plan over time, and what makes up its peak, both from its trace."""

from collections.abc import Mapping
from itertools import pairwise

from autofit.core.account import Account
from autofit.core.strict import Strict
from autofit.memory.breakdown import Breakdown, anatomy
from autofit.memory.peak import MemoryUse
from autofit.memory.trace import Kind, Trace

POINTS = 240
"""Number of points of a timeline: about one for every two pixels of a drawing. Each phase has at least one."""


class StepPhase(Strict):
    """A part of an optimizer step.

    Attributes:
        name: "forward", "backward" or "optimizer".
        start: index of its first point in `Profile.live_bytes`.
        end: index after its last point.
    """

    name: str
    start: int
    end: int


class Profile(Strict):
    """The memory of one optimizer step.

    Attributes:
        breakdown: what makes up the peak.
        peak_bytes: peak by the trace, in the reading that is compared with the budget, without the correction by
            measured plans.
        live_bytes: bytes of live tensors over the last traced step. The points are allocations and releases in order,
            not points in time: each value is the maximum over an equal number of them, so no maximum is lost. The
            allocator's cache, the context and libraries are not included, so on an accelerator the largest value is
            below `peak_bytes`.
        kinds: the kinds of tensors (`autofit.memory.trace.Kind`) behind each value of `live_bytes`, which is their sum;
            a kind that the step never holds is left out.
        phases: the parts of the step, in order. A step with accumulation has forward and backward several times; a
            trace has at most `autofit.memory.trace.MOST_PARTS` micro batches.
    """

    breakdown: Breakdown
    peak_bytes: int
    live_bytes: tuple[int, ...]
    kinds: Mapping[str, tuple[int, ...]] = {}
    phases: tuple[StepPhase, ...]


def profile(trace: Trace, use: MemoryUse, account: Account) -> Profile:
    """Returns the profile of a plan.

    Args:
        trace: of the plan.
        use: what the trace takes on the device (`autofit.memory.peak.memory_use`).
        account: how the device accounts for memory.
    """
    live = list(trace.live_bytes())
    picked, phases = points_of(trace)
    return Profile(
        breakdown=anatomy(trace, use, account.outside_bytes),
        peak_bytes=use.judged_bytes,
        live_bytes=tuple(live[event] + use.waiting_bytes for event in picked),
        kinds=_kinds(trace, picked, use.waiting_bytes),
        phases=phases,
    )


def points_of(trace: Trace) -> tuple[list[int], tuple[StepPhase, ...]]:
    """Returns the events of the last step that a timeline shows, and its phases."""
    live, picked, phases = list(trace.live_bytes()), list[int](), list[StepPhase]()
    marks = _last_step(trace)
    total = max(marks[-1][1] - marks[0][1], 1)
    for (name, begin), (_, end) in pairwise(marks):
        if end <= begin:
            continue
        share = max(round(POINTS * (end - begin) / total), 1)
        start = len(picked)
        picked += _highest(live, begin, end, share)
        phases.append(StepPhase(name=name, start=start, end=len(picked)))
    return picked, tuple(phases)


def _last_step(trace: Trace) -> list[tuple[str, int]]:
    """Returns the phases of the last step as name and first event, with the end of the trace as the last entry."""
    steps = [mark for mark in trace.marks if mark.name.startswith("step ")]
    if not steps:
        return [("step", 0), ("", len(trace.events))]
    prefix = " ".join(steps[-1].name.split(" ")[:2]) + " "
    found = [(mark.name.removeprefix(prefix), mark.event) for mark in steps if mark.name.startswith(prefix)]
    return [*found, ("", trace.marks[-1].event)]


def _highest(live: list[int], begin: int, end: int, count: int) -> list[int]:
    """Returns the event of the maximum in each of at most `count` stretches of equal length."""
    count = min(count, end - begin)
    edges = [begin + (end - begin) * number // count for number in range(count + 1)]
    return [max(range(start, stop), key=live.__getitem__) for start, stop in pairwise(edges)]


def _kinds(trace: Trace, picked: list[int], waiting_bytes: int) -> dict[str, tuple[int, ...]]:
    """Returns the bytes of each kind after each of some events."""
    found = dict[str, tuple[int, ...]]()
    for kind in Kind:
        live, more = list(trace.live_bytes(kind)), waiting_bytes if kind is Kind.BATCH else 0
        found[kind.value] = tuple(live[event] + more for event in picked)
    return {kind: sizes for kind, sizes in found.items() if any(sizes)}
