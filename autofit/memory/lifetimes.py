"""Lifetimes: one training step of a trace, as it is and as it would be with some allocations released earlier."""

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from autofit.memory.replay import END
from autofit.memory.trace import Mark, Tensors, Trace


class Gap(NamedTuple):
    """A part of a trace in which an allocation is not needed.

    Attributes:
        handle: the allocation.
        first: number of events before it is released.
        last: number of events before it is allocated again.
    """

    handle: int
    first: int
    last: int


def step_of(trace: Trace, number: int) -> Trace:
    """Returns one step of a trace. Its first events allocate what is alive when the step begins; handles are kept.

    Raises:
        ValueError: the trace has no such step.
    """
    prefix = f"step {number} "
    places = [place for place, mark in enumerate(trace.marks) if mark.name.startswith(prefix)]
    if not places:
        raise ValueError(f"found no step {number} in a trace; expected one of its marks to begin with {prefix!r}")
    marks = trace.marks[places[0] : places[-1] + 2]
    begin, end = marks[0].event, marks[-1].event
    before = sorted(trace.alive(begin))
    moved = [Mark(name=mark.name, event=mark.event - begin + len(before)) for mark in marks]
    moved[-1] = Mark(name=END, event=moved[-1].event)
    events = (*before, *trace.events[begin:end])
    return trace.model_copy(update={"events": events, "marks": tuple(moved)})


def changed(
    trace: Trace,
    *,
    ends: Mapping[int, int] | None = None,
    gaps: Iterable[Gap] = (),
    without: Set[int] = frozenset(),
    sizes: Mapping[int, int] | None = None,
) -> Trace:
    """Returns a trace with other lifetimes.

    Args:
        trace: the trace, which is not changed.
        ends: for some allocations, the number of events after which they are released, if they are not before.
        gaps: parts of the trace in which an allocation is released.
        without: allocations that are never made.
        sizes: other sizes of some allocations.
    """
    run, due = _Rewriting(trace, without), dict[int, list[tuple[int, bool]]]()
    for handle, at in (ends or {}).items():
        due.setdefault(at, []).append((handle, False))
    for handle, first, last in gaps:
        due.setdefault(first, []).append((handle, False))
        due.setdefault(last, []).append((handle, True))
    places = list[int]()
    for place in range(len(trace.events) + 1):
        for handle, back in due.get(place, ()):
            (run.allocate_again if back else run.release)(handle)
        places.append(len(run.events))
        if place < len(trace.events):
            run.repeat(trace.events[place])
    moved = tuple(Mark(name=mark.name, event=places[mark.event]) for mark in trace.marks)
    return trace.model_copy(update={"tensors": run.tensors(sizes or {}), "events": tuple(run.events), "marks": moved})


class _Rewriting:
    """A trace that is written anew, event by event."""

    def __init__(self, trace: Trace, without: Set[int]) -> None:
        self.events: list[int] = []
        self._trace, self._without = trace, without
        self._now: dict[int, int] = {}  # number of each live allocation
        self._away: set[int] = set()
        self._repeated: list[int] = []

    def repeat(self, event: int) -> None:
        """Does what an event of the trace does, as far as it is not done yet."""
        if event >= 0:
            if event not in self._without:
                self._now[event] = event
                self.events.append(event)
            return
        self._away.discard(~event)
        if (number := self._now.pop(~event, None)) is not None:
            self.events.append(~number)

    def release(self, handle: int) -> None:
        """Releases an allocation early, if it is alive."""
        if (number := self._now.pop(handle, None)) is not None:
            self._away.add(handle)
            self.events.append(~number)

    def allocate_again(self, handle: int) -> None:
        """Allocates again what was released early, unless the trace itself has released it since."""
        if handle in self._away:
            self._away.discard(handle)
            self._now[handle] = len(self._trace.tensors.sizes) + len(self._repeated)
            self._repeated.append(handle)
            self.events.append(self._now[handle])

    def tensors(self, sizes: Mapping[int, int]) -> Tensors:
        """Returns the allocations, some with other sizes; those that were made again come last."""
        columns = self._trace.tensors
        now = tuple(sizes.get(handle, size) for handle, size in enumerate(columns.sizes))
        more = {
            name: (*column, *(column[handle] for handle in self._repeated if column))
            for name, column in (
                ("sizes", now),
                ("kinds", columns.kinds),
                ("origins", columns.origins),
                ("streams", columns.streams),
            )
        }
        return columns.model_copy(update=more)
