"""Trace assembly: converts the events of a recorder into a `Trace`.

The autograd engine adds two gradients in place if it holds the only reference to the first, but never if they are
tensor subclasses. For fake tensors, such a sum makes a new tensor, and the first operand is released before anything
else is allocated. This pair of events is removed. Without the removal, the peak of a residual network is 7 % too high
(reference/memory_prediction.md section 3).

If torch's own code writes into an operand that it has made itself (see recorder.py), the result and the operand share
one piece of memory, which is released with the last of the two.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofit.memory.trace import Kind, Tensors
from autofit.tracing.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Assembly:
    """The allocations and events of a trace, and how to find those of the recorder in it.

    Attributes:
        tensors: the allocations.
        events: as in `Trace.events`.
        numbers: handle in the trace of each of the recorder's handles. Those that share memory have the same one.
        dropped: positions of the recorder's events that the trace lacks, ascending.
        initial: number of events in front of the recorder's.
    """

    tensors: Tensors
    events: tuple[int, ...]
    numbers: Mapping[int, int]
    dropped: Sequence[int]
    initial: int

    def place(self, event: int) -> int:
        """Returns the number of events in the trace before the recorder's event of this position."""
        return self.initial + event - bisect_left(self.dropped, event)


def assembled(recorder: Recorder) -> Assembly:
    """Returns the allocations and events of a trace. Handles are numbered in the order of their events."""
    dropped, same = _sums_in_place(recorder)
    _join_replaced(recorder, dropped, same)
    kept = [event for place, event in enumerate(recorder.events) if place not in dropped]
    numbers: dict[int, int] = {}
    events: list[int] = []
    for event in (*recorder.initial, *kept):
        handle = event if event >= 0 else ~event
        number = numbers.setdefault(same.get(handle, handle), len(numbers))
        events.append(number if event >= 0 else ~number)
    kinds = [recorder.kinds[handle] for handle in numbers]
    for later, first in same.items():
        if recorder.kinds[later] is not Kind.TEMPORARY:
            kinds[numbers[first]] = recorder.kinds[later]
    columns = Tensors(
        sizes=tuple(recorder.sizes[handle] for handle in numbers),
        kinds=tuple(kinds),
        origins=tuple(recorder.origins[handle] for handle in numbers),
        streams=_streams([recorder.streams[handle] for handle in numbers]),
    )
    numbers |= {later: numbers[first] for later, first in same.items() if first in numbers}
    return Assembly(columns, tuple(events), numbers, sorted(dropped), len(recorder.initial))


def _streams(found: Sequence[int]) -> tuple[int, ...]:
    """Returns streams numbered in the order of their first allocations, as in any other trace; () if there is one."""
    numbers = {0: 0}
    for stream in found:
        numbers.setdefault(stream, len(numbers))
    return tuple(numbers[stream] for stream in found) if len(numbers) > 1 else ()


def _sums_in_place(recorder: Recorder) -> tuple[set[int], dict[int, int]]:
    """Returns the positions of events that do not happen for plain tensors, and the real handle of each merged one."""
    events, dropped, same = recorder.events, set[int](), dict[int, int]()
    for place, event in enumerate(events):
        if event not in recorder.added:
            continue
        first = recorder.added[event]
        death = place + 1
        while death < len(events) and events[death] < 0 and events[death] != ~first:
            death += 1
        if death < len(events) and events[death] == ~first:
            dropped |= {place, death}
            same[event] = same.get(first, first)
    return dropped, same


def _join_replaced(recorder: Recorder, dropped: set[int], same: dict[int, int]) -> None:
    """Merges results with the first operand that they are written into; only the last release is kept."""
    same |= recorder.replaced
    for later in sorted(same):  # in this order, the operand's own replacement is already resolved
        same[later] = same.get(same[later], same[later])
    heads = {same[later] for later in recorder.replaced}
    released: dict[int, int] = {}
    for place, event in enumerate(recorder.events):
        if event in recorder.replaced:
            dropped.add(place)
        elif event < 0 and place not in dropped and (head := same.get(~event, ~event)) in heads:
            if head in released:
                dropped.add(released[head])
            released[head] = place
