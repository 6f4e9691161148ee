"""Alignment: matches the allocations of several traces of one plan at different micro batch sizes.

Two things may differ between such traces although the step is the same. Consecutive releases may be in any order (the
autocast cache is a hash table). No allocation is served between them, so their order has no effect. And the momentary
allocations, which an operator makes and frees itself, depend on the size: a sum over many rows allocates memory for
partial results, a sum over few rows does not. Everything else must be equal, event for event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from autofit.memory.trace import Kind, Mark, Trace

LONGEST = 16
"""Maximum number of events in a group of momentary allocations and their releases."""
BRIEF = 32
"""Maximum number of events from a momentary allocation to its release, including results allocated in between."""
BEFORE = "before the first step"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why traces cannot be aligned as the same step at different sizes. Each size then needs its own trace.

    Attributes:
        reason: the difference and its position.
    """

    reason: str


@dataclass(slots=True)
class Alignment:
    """Aligned traces. The columns have one entry for each allocation of any trace.

    Attributes:
        sizes: sizes by trace, then by allocation. 0 if a trace does not have the allocation.
        momentary: whether the allocation is temporary and released within `BRIEF` events.
    """

    sizes: list[list[int]]
    kinds: list[Kind] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    momentary: list[bool] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class _Outline:
    """The lasting events of a trace.

    Attributes:
        items: the number of a lasting allocation, its complement for the release, or the name of a mark.
        handles: the handle in the trace of each lasting allocation.
        moments: groups of momentary events by the index in `items` that they precede.
    """

    trace: Trace
    items: list[int | str] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    moments: dict[int, list[list[int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Moment:
    """One group of momentary allocations: its shape, and its handles by trace."""

    shape: tuple[tuple[int, int], ...]
    handles: dict[int, list[int]]


def aligned(traces: Sequence[Trace]) -> Alignment | Mismatch:
    """Returns the aligned `traces`, or where they differ."""
    outlines = [_outline(trace) for trace in traces]
    for outline in outlines[1:]:
        if reason := _different(outlines[0], outline):
            return Mismatch(reason)
    first = outlines[0]
    result = Alignment(sizes=[[] for _ in traces])
    brief = _brief(traces[0])
    numbers: list[int] = []
    for place in range(len(first.items) + 1):
        for moment in _merged_moments([outline.moments.get(place, []) for outline in outlines], outlines):
            _add_moment(result, moment, outlines)
        if place == len(first.items):
            break
        item = first.items[place]
        if isinstance(item, str):
            result.marks.append(Mark(name=item, event=len(result.events)))
        elif item >= 0:
            numbers.append(len(result.kinds))
            result.events.append(len(result.kinds))
            columns = [(outline.trace, outline.handles[item]) for outline in outlines]
            _add_column(result, columns, momentary=first.handles[item] in brief)
        else:
            result.events.append(~numbers[~item])
    return result


def _brief(trace: Trace) -> set[int]:
    """Returns the temporary allocations that are released within `BRIEF` events."""
    begun: dict[int, int] = {}
    found = set[int]()
    for place, event in enumerate(trace.events):
        if event >= 0:
            begun[event] = place
        elif place - begun[~event] < BRIEF and trace.tensors.kinds[~event] is Kind.TEMPORARY:
            found.add(~event)
    return found


def described(trace: Trace, handle: int) -> str:
    """Returns the description of an allocation."""
    kind, origin = _class(trace, handle)
    module = f" of {trace.modules[origin] or 'the model'}" if origin >= 0 else ""
    return f"allocation {handle} ({kind.value}{module})"


def _outline(trace: Trace) -> _Outline:
    outline = _Outline(trace)
    number: dict[int, int] = {}
    events, bounds = trace.events, {mark.event for mark in trace.marks}
    marks = iter(trace.marks)
    mark = next(marks, None)
    place = run = 0  # items[run:] is the current run of releases
    while place < len(events) or mark is not None:
        if mark is not None and mark.event <= place:
            outline.items.append(mark.name)
            mark, run = next(marks, None), len(outline.items)
            continue
        if (end := _moment_end(trace, place, bounds)) > place:
            outline.moments.setdefault(len(outline.items), []).append(list(events[place:end]))
            place, run = end, len(outline.items)
            continue
        if (event := events[place]) >= 0:
            number[event] = len(outline.handles)
            outline.items.append(len(outline.handles))
            outline.handles.append(event)
            run = len(outline.items)
        else:
            outline.items.append(~number[~event])
            outline.items[run:] = sorted(i for i in outline.items[run:] if isinstance(i, int))
        place += 1
    return outline


def _moment_end(trace: Trace, start: int, bounds: set[int]) -> int:
    """Returns the end of the group of momentary allocations at `start`, or `start` if no group begins there."""
    taken: set[int] = set()
    for place in range(start, min(start + LONGEST, len(trace.events))):
        event = trace.events[place]
        if place > start and place in bounds:
            return start
        if event >= 0:
            if trace.tensors.kinds[event] is not Kind.TEMPORARY:
                return start
            taken.add(event)
        elif ~event in taken:
            taken.remove(~event)
            if not taken:
                return place + 1
        else:
            return start
    return start


def _different(one: _Outline, other: _Outline) -> str:
    """Returns where the lasting events of two traces first differ, or "" if they are equal."""
    sizes = f"at micro batches of {one.trace.micro_batch_size} and {other.trace.micro_batch_size}"
    shared = min(len(one.items), len(other.items))
    place = next((i for i in range(shared) if one.items[i] != other.items[i]), shared)
    if place < max(len(one.items), len(other.items)):
        before = list(reversed(one.items[:place]))
        phase = next((item for item in before if isinstance(item, str)), BEFORE)
        made = next((item for item in before if isinstance(item, int) and item >= 0), None)
        after = "" if made is None else f", after {described(one.trace, one.handles[made])}"
        return f"the events {sizes} differ in {phase}{after}"
    if one.trace.modules != other.trace.modules:
        return f"the modules {sizes} differ"
    for left, right in zip(one.handles, other.handles, strict=True):
        if _class(one.trace, left) != _class(other.trace, right):
            return f"{sizes}, {described(one.trace, left)} is {described(other.trace, right)}"
    return ""


def _class(trace: Trace, handle: int) -> tuple[Kind, int]:
    return trace.tensors.kinds[handle], trace.tensors.origins[handle]


def _merged_moments(groups: list[list[list[int]]], outlines: list[_Outline]) -> list[_Moment]:
    """Returns the momentary groups of all traces at one index. Groups of the same shape are matched."""
    matched: list[_Moment] = []
    for number, (found, outline) in enumerate(zip(groups, outlines, strict=True)):
        moments = [_moment(number, events, outline.trace) for events in found]
        before, added = [moment.shape for moment in matched], [moment.shape for moment in moments]
        merged: list[_Moment] = []
        for tag, a, a_end, b, b_end in SequenceMatcher(a=before, b=added, autojunk=False).get_opcodes():
            merged += matched[a:a_end]
            if tag == "equal":
                for kept, moment in zip(matched[a:a_end], moments[b:b_end], strict=True):
                    kept.handles |= moment.handles
            else:
                merged += moments[b:b_end]
        matched = merged
    return matched


def _moment(number: int, events: list[int], trace: Trace) -> _Moment:
    """Returns a group with its shape: for each event, the index of its allocation in the group and its module."""
    handles = [event for event in events if event >= 0]
    place = {handle: i for i, handle in enumerate(handles)}
    shape = tuple(
        (place[e], trace.tensors.origins[e]) if e >= 0 else (~place[~e], trace.tensors.origins[~e]) for e in events
    )
    return _Moment(shape, {number: handles})


def _add_moment(result: Alignment, moment: _Moment, outlines: list[_Outline]) -> None:
    begin = len(result.kinds)
    for event, _ in moment.shape:
        if event < 0:
            result.events.append(~(begin + ~event))
            continue
        result.events.append(begin + event)
        columns = [
            (outline.trace, moment.handles[number][event] if number in moment.handles else None)
            for number, outline in enumerate(outlines)
        ]
        _add_column(result, columns, momentary=True)


def _add_column(result: Alignment, handles: Sequence[tuple[Trace, int | None]], *, momentary: bool) -> None:
    trace, present = next((trace, handle) for trace, handle in handles if handle is not None)
    kind, origin = _class(trace, present)
    result.kinds.append(kind)
    result.origins.append(origin)
    result.streams.append(trace.tensors.stream(present))
    result.momentary.append(momentary)
    for sizes, (trace, handle) in zip(result.sizes, handles, strict=True):
        sizes.append(0 if handle is None else trace.tensors.sizes[handle])
