"""Anatomy: what makes up a peak, from the trace in which it was found, in parts that a person can take in."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from autofit.core.foreseen import BEYOND, OUTSIDE, Breakdown, Part
from autofit.core.trace import Kind, Trace

STANDING = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
PASSING = (Kind.ACTIVATION, Kind.TEMPORARY)
"""What belongs to the pass of a module; the other kinds belong to the training as a whole."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


def anatomy(  # the readings of one peak
    trace: Trace,
    event: int,
    moment: str,
    allocated_bytes: int,
    reserved_bytes: int | None,
    outside_bytes: int,
    waiting_bytes: int = 0,
) -> Breakdown:
    """Returns what makes up a peak.

    Args:
        trace: of the plan that peaks.
        event: number of events up to where live tensors peak.
        moment: the phase in which they do.
        allocated_bytes: peak of live tensors.
        reserved_bytes: peak of the allocator's segments; None on a host.
        outside_bytes: what lies outside the allocator.
        waiting_bytes: batches that are held beside those of the trace.
    """
    alive = trace.alive(event)
    kinds = _by_kind(trace, alive, {Kind.BATCH.value: waiting_bytes})
    held = allocated_bytes if reserved_bytes is None else reserved_bytes
    beyond = held - sum(part.size_bytes for part in kinds)
    extra = (Part(name=BEYOND, size_bytes=beyond), Part(name=OUTSIDE, size_bytes=outside_bytes))
    return Breakdown(
        moment=moment,
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        kinds=(*kinds, *(part for part in extra if part.size_bytes > 0)),
        modules=_by_module(trace, alive),
        standing=standing(trace),
    )


def standing(trace: Trace) -> tuple[Part, ...]:
    """Returns what a step keeps whatever its batch, as it is before the last update: gradients are all there then."""
    updates = [mark.event for mark in trace.marks if mark.name.endswith("optimizer")]
    found = _by_kind(trace, trace.alive(updates[-1] if updates else len(trace.events)))
    return tuple(part for part in found if part.name in STANDING)


def _by_kind(trace: Trace, alive: Iterable[int], beside: Mapping[str, int] | None = None) -> tuple[Part, ...]:
    sums = Counter[str](beside)
    for handle in alive:
        sums[trace.tensors.kinds[handle].value] += trace.tensors.sizes[handle]
    return tuple(Part(name=name, size_bytes=size) for name, size in sums.most_common() if size)


def _by_module(trace: Trace, alive: Iterable[int]) -> tuple[Part, ...]:
    """Returns activations and temporaries by module; repeated modules, which differ by number, are one part."""
    sums, members = Counter[str](), dict[str, set[int]]()
    for handle in alive:
        if trace.tensors.kinds[handle] not in PASSING or not trace.tensors.sizes[handle]:
            continue
        origin = trace.tensors.origins[handle]
        name = _pattern(trace.modules[origin]) if origin >= 0 else "outside any module"
        sums[name] += trace.tensors.sizes[handle]
        members.setdefault(name, set()).add(origin)
    return tuple(Part(name=name, size_bytes=size, count=len(members[name])) for name, size in sums.most_common())


def _pattern(name: str) -> str:
    """Returns a module's name with a star for each number; one that has nothing but numbers stays as it is."""
    pattern = _NUMBER.sub("*", name)
    return pattern if pattern.strip("*.") else name or "the model itself"
