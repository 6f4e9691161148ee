"""Breakdown: the parts of a memory peak, computed from a trace."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from autofit.core.strict import Strict
from autofit.memory.peak import MemoryUse
from autofit.memory.trace import Kind, Trace

BEYOND = "allocator's cache and rounding"
"""Part of a peak: memory that the allocator holds beyond live tensors."""
OUTSIDE = "context and libraries"
"""Part of a peak: memory of the process on the device outside the allocator."""

FIXED = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
PASSING = (Kind.ACTIVATION, Kind.TEMPORARY)
"""Kinds of tensors that a module's forward or backward pass allocates. The others persist or belong to the whole
step."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class Part(Strict):
    """A part of a peak.

    Attributes:
        name: a kind of tensor, or a module name in which * replaces the numbers of repeated modules.
        size_bytes: its share of the peak.
        count: number of modules with this name.
    """

    name: str
    size_bytes: int
    count: int = 1


class Breakdown(Strict):
    """The parts of the baseline's peak memory.

    Attributes:
        moment: the phase of the step in which live tensors peak.
        allocated_bytes: peak of live tensors.
        reserved_bytes: peak of the allocator's segments. None on a host, which has none.
        kinds: parts by kind of tensor, largest first, then memory that the allocator holds beyond live tensors, and
            memory outside the allocator. They sum to the peak.
        modules: activations and temporaries by the module in whose pass they were allocated, largest first.
        standing: memory that does not depend on the batch: parameters, buffers, gradients, optimizer state.
    """

    moment: str
    allocated_bytes: int
    reserved_bytes: int | None
    kinds: tuple[Part, ...]
    modules: tuple[Part, ...]
    standing: tuple[Part, ...]

    @property
    def fixed_bytes(self) -> int:
        """Total size of `standing`."""
        return sum(part.size_bytes for part in self.standing)


def anatomy(trace: Trace, use: MemoryUse, outside_bytes: int) -> Breakdown:
    """Returns the parts of a peak.

    Args:
        trace: trace of the plan.
        use: what the trace takes on the device.
        outside_bytes: memory outside the allocator.
    """
    alive = trace.alive(use.peak.peak_event)
    kinds = _by_kind(trace, alive, {Kind.BATCH.value: use.waiting_bytes})
    held = use.allocated_bytes if use.reserved_bytes is None else use.reserved_bytes
    beyond = held - sum(part.size_bytes for part in kinds)
    extra = (Part(name=BEYOND, size_bytes=beyond), Part(name=OUTSIDE, size_bytes=outside_bytes))
    return Breakdown(
        moment=use.peak.name,
        allocated_bytes=use.allocated_bytes,
        reserved_bytes=use.reserved_bytes,
        kinds=(*kinds, *(part for part in extra if part.size_bytes > 0)),
        modules=_by_module(trace, alive),
        standing=fixed_parts(trace),
    )


def fixed_parts(trace: Trace) -> tuple[Part, ...]:
    """Returns the memory that does not depend on the batch, before the last update, when all gradients exist."""
    updates = [mark.event for mark in trace.marks if mark.name.endswith("optimizer")]
    found = _by_kind(trace, trace.alive(updates[-1] if updates else len(trace.events)))
    return tuple(part for part in found if part.name in FIXED)


def _by_kind(trace: Trace, alive: Iterable[int], beside: Mapping[str, int] | None = None) -> tuple[Part, ...]:
    sums = Counter[str](beside)
    for handle in alive:
        sums[trace.tensors.kinds[handle].value] += trace.tensors.sizes[handle]
    return tuple(Part(name=name, size_bytes=size) for name, size in sums.most_common() if size)


def _by_module(trace: Trace, alive: Iterable[int]) -> tuple[Part, ...]:
    """Returns activations and temporaries by module. Repeated modules, which differ only by number, are one part."""
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
    """Returns a module's name with * for each number. A name of numbers only is kept."""
    pattern = _NUMBER.sub("*", name)
    return pattern if pattern.strip("*.") else name or "the model itself"
