"""Replay: runs a trace through the simulated allocator. Returns the peak of each phase and whether it fits."""

from dataclasses import dataclass, replace

from autofit.memory.allocator.blocks import MemoryBlock
from autofit.memory.allocator.simulator import CachingAllocator
from autofit.memory.trace import Trace

END = "end"
BEFORE = "before the first step"


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """One phase of a trace.

    Attributes:
        name: name of the phase, as in `Mark.name`. Events before the first mark are "before the first step".
        allocated_bytes: peak of allocated memory during the phase.
        reserved_bytes: peak of reserved memory during the phase.
        peak_event: number of events after which `allocated_bytes` was first reached.
        retries: number of times the allocator had to release its whole cache.
    """

    name: str
    allocated_bytes: int
    reserved_bytes: int
    peak_event: int
    retries: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        phases: the phases in order. If memory runs out, that phase is the last.
        ran_out_at: number of events before the request that could not be served. None if all were served.
    """

    phases: tuple[PhasePeak, ...]
    ran_out_at: int | None

    @property
    def fits(self) -> bool:
        """Whether every request was served, with or without retries."""
        return self.ran_out_at is None

    @property
    def fits_without_retries(self) -> bool:
        """Whether every request was served without releasing the cache, so that the plan runs at full speed."""
        return self.fits and not any(phase.retries for phase in self.phases)

    @property
    def peak(self) -> PhasePeak:
        """The maximum over the whole trace."""
        highest = max(self.phases, key=lambda phase: phase.allocated_bytes)
        reserved, retries = max(p.reserved_bytes for p in self.phases), sum(p.retries for p in self.phases)
        return replace(highest, name="peak", reserved_bytes=reserved, retries=retries)


def replay(trace: Trace, allocator: CachingAllocator | None = None) -> Replay:
    """Serves the requests of `trace` one by one, each on its stream, from an empty allocator.

    None is one with unlimited memory and torch's default options.
    """
    allocator = allocator or CachingAllocator()
    blocks: list[MemoryBlock | None] = [None] * len(trace.tensors.sizes)
    phases: list[PhasePeak] = []
    ran_out_at = None
    for name, begin, end in _phases(trace):
        retries = allocator.retries
        allocator.reset_peaks()
        ran_out_at, peak_event = _run(allocator, trace, blocks, begin, end)
        phase = PhasePeak(
            name=name,
            allocated_bytes=allocator.peak_allocated_bytes,
            reserved_bytes=allocator.peak_reserved_bytes,
            peak_event=peak_event,
            retries=allocator.retries - retries,
        )
        phases.append(phase)
        if ran_out_at is not None:
            break
    return Replay(tuple(phases), ran_out_at)


def peaks(trace: Trace) -> tuple[PhasePeak, ...]:
    """Returns the peaks of live tensors by phase, as a host counts them: without rounding and segments."""
    live, phases = [0, *trace.live_bytes()], []
    for name, begin, end in _phases(trace):
        highest = max(range(begin, end + 1), key=live.__getitem__)
        peak = live[highest]
        phases.append(PhasePeak(name=name, allocated_bytes=peak, reserved_bytes=peak, peak_event=highest, retries=0))
    return tuple(phases)


def _phases(trace: Trace) -> list[tuple[str, int, int]]:
    """Returns the name, first event and end of each phase that has events."""
    marks = [(BEFORE, 0), *((mark.name, mark.event) for mark in trace.marks)]
    ends = [event for _, event in marks[1:]] + [len(trace.events)]
    phases = [(name, begin, end) for (name, begin), end in zip(marks, ends, strict=True) if end > begin]
    return phases or [(BEFORE, 0, 0)]


def _run(
    allocator: CachingAllocator, trace: Trace, blocks: list[MemoryBlock | None], begin: int, end: int
) -> tuple[int | None, int]:
    """Serves a range of events. Returns where memory ran out, or None, and where allocated memory peaked."""
    malloc, free, sizes, stream = allocator.malloc, allocator.free, trace.tensors.sizes, trace.tensors.stream
    peak, peak_event = allocator.allocated_bytes, begin
    for number, event in enumerate(trace.events[begin:end], begin):
        if event >= 0:
            if size := sizes[event]:
                if (block := malloc(size, stream(event))) is None:
                    return number, peak_event
                blocks[event] = block
                if allocator.allocated_bytes > peak:
                    peak, peak_event = allocator.allocated_bytes, number + 1
        elif (freed := blocks[~event]) is not None:
            free(freed)
            blocks[~event] = None
    return None, peak_event
