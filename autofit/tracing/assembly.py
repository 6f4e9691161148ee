"""Assembly: what a recorder saw, as a `Trace`.

The autograd engine adds a gradient to another in place when it holds the only reference to it, but never where they are
tensor subclasses, as fake tensors are: such a sum makes a new tensor, and the first operand dies before anything else
is allocated. That pair of events is taken out again. Without this a residual network is 7 % over
(reference/memory_prediction.md section 3).

Where torch's own code writes into an operand that it has made itself (inplace.py), result and operand are one piece of
memory, which lives as long as any of the two.
"""

from collections.abc import Sequence

from autofit.memory.trace import Kind, Mark, Tensors
from autofit.tracing.recorder import Recorder


def assembled(recorder: Recorder, marks: Sequence[Mark]) -> tuple[Tensors, tuple[int, ...], tuple[Mark, ...]]:
    """Returns the allocations, events and marks of a trace; handles are numbered in the order of their events."""
    dropped, same = _sums_in_place(recorder)
    _join_replaced(recorder, dropped, same)
    kept = [event for place, event in enumerate(recorder.events) if place not in dropped]
    numbers: dict[int, int] = {}
    events: list[int] = []
    for event in (*recorder.standing, *kept):
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
    )
    return columns, tuple(events), _moved(marks, sorted(dropped), len(recorder.standing))


def _sums_in_place(recorder: Recorder) -> tuple[set[int], dict[int, int]]:
    """Returns the places of events that do not really happen, and for each handle the one that it really is."""
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
    """Adds to both what was written into its first operand: of its events only the last release happens."""
    same |= recorder.replaced
    for later in sorted(same):  # what an operand is itself written into is older
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


def _moved(marks: Sequence[Mark], dropped: Sequence[int], standing: int) -> tuple[Mark, ...]:
    """Returns the marks at the places that they have after events were dropped and others put in front."""
    return tuple(
        Mark(name=mark.name, event=standing + mark.event - sum(place < mark.event for place in dropped))
        for mark in marks
    )
