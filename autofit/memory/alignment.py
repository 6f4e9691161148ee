"""Alignment: which allocation of one trace is which of another, for traces of one plan at several micro batch sizes.

Two things differ between such traces although the step is the same. Several releases in a row come in any order (the
cache of autocast is a hash table); no allocation is served between them, so the order changes nothing. And what an
operator takes for the moment depends on the size: a sum over many rows takes room for partial results, one over few
rows does not. Everything else has to be the same, event for event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from autofit.memory.trace import Kind, Mark, Trace

LONGEST = 16
"""An operator takes and gives back what it needs for the moment within so many events."""
BRIEF = 32
"""An operator that takes something for the moment, and its results in between, is over within so many events."""
BEFORE = "before the first step"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why traces cannot be taken for the same step at different sizes; each size then needs its own trace.

    Attributes:
        reason: what differs, and where.
    """

    reason: str


@dataclass(slots=True)
class Alignment:
    """Traces laid over each other. The columns have one entry for each allocation that any of the traces has.

    Attributes:
        sizes: by trace, then by allocation; 0 where a trace does not have it.
        momentary: whether the allocation is a temporary one that is given back within `BRIEF` events.
    """

    sizes: list[list[int]]
    kinds: list[Kind] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    momentary: list[bool] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class _Outline:
    """The lasting events of a trace.

    Attributes:
        items: number of a lasting allocation, its complement for the release, or the name of a mark.
        handles: the handle in the trace of each lasting allocation.
        moments: by place in `items`, what is taken for the moment before it: lists of events.
    """

    trace: Trace
    items: list[int | str] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    moments: dict[int, list[list[int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Moment:
    """One group of momentary allocations: its shape and, by trace, its handles."""

    shape: tuple[tuple[int, int], ...]
    handles: dict[int, list[int]]


def aligned(traces: Sequence[Trace]) -> Alignment | Mismatch:
    """Returns `traces` laid over each other, or where they differ."""
    outlines = [_outline(trace) for trace in traces]
    for outline in outlines[1:]:
        if reason := _different(outlines[0], outline):
            return Mismatch(reason)
    first = outlines[0]
    result = Alignment(sizes=[[] for _ in traces])
    brief = _brief(traces[0])
    numbers: list[int] = []
    for place in range(len(first.items) + 1):
        for moment in _united([outline.moments.get(place, []) for outline in outlines], outlines):
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
    """Returns the temporary allocations that are given back shortly after they are taken."""
    begun: dict[int, int] = {}
    found = set[int]()
    for place, event in enumerate(trace.events):
        if event >= 0:
            begun[event] = place
        elif place - begun[~event] < BRIEF and trace.tensors.kinds[~event] is Kind.TEMPORARY:
            found.add(~event)
    return found


def described(trace: Trace, handle: int) -> str:
    """Returns an allocation in words."""
    return _words(handle, trace.tensors.kinds[handle], trace.tensors.origins[handle], trace.modules)


def _words(handle: int, kind: Kind, origin: int, modules: tuple[str, ...]) -> str:
    module = f" of {modules[origin] or 'the model'}" if origin >= 0 else ""
    return f"allocation {handle} ({kind.value}{module})"


def _outline(trace: Trace) -> _Outline:
    outline = _Outline(trace)
    number: dict[int, int] = {}
    events, bounds = trace.events, {mark.event for mark in trace.marks}
    marks = iter(trace.marks)
    mark = next(marks, None)
    place = run = 0  # a run of releases goes on since items[run]
    while place < len(events) or mark is not None:
        if mark is not None and mark.event <= place:
            outline.items.append(mark.name)
            mark, run = next(marks, None), len(outline.items)
            continue
        end = _moment_end(trace, place, bounds)
        if end > place:
            outline.moments.setdefault(len(outline.items), []).append(list(events[place:end]))
            place, run = end, len(outline.items)
            continue
        event = events[place]
        if event >= 0:
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
    """Returns where a group of momentary allocations that starts at an event ends; `start` when none does."""
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
    """Returns where the lasting events of two traces part, or "" when they are the same."""
    sizes = f"at micro batches of {one.trace.micro_batch_size} and {other.trace.micro_batch_size}"
    shared = min(len(one.items), len(other.items))
    place = next((i for i in range(shared) if one.items[i] != other.items[i]), shared)
    if place < max(len(one.items), len(other.items)):
        return f"the events {sizes} part {_where(one, place)}"
    if one.trace.modules != other.trace.modules:
        return f"the modules {sizes} differ"
    for left, right in zip(one.handles, other.handles, strict=True):
        if _class(one.trace, left) != _class(other.trace, right):
            return f"{sizes} {described(one.trace, left)} is {described(other.trace, right)}"
    return ""


def _class(trace: Trace, handle: int) -> tuple[Kind, int]:
    return trace.tensors.kinds[handle], trace.tensors.origins[handle]


def _where(outline: _Outline, place: int) -> str:
    phase = next((item for item in reversed(outline.items[:place]) if isinstance(item, str)), BEFORE)
    made = next((item for item in reversed(outline.items[:place]) if isinstance(item, int) and item >= 0), None)
    after = "" if made is None else f", after {described(outline.trace, outline.handles[made])}"
    return f"in {phase}{after}"


def _united(groups: list[list[list[int]]], outlines: list[_Outline]) -> list[_Moment]:
    """Returns the momentary groups of all traces at one place, those of the same shape taken for the same."""
    united: list[_Moment] = []
    for number, (found, outline) in enumerate(zip(groups, outlines, strict=True)):
        moments = [_moment(number, events, outline.trace) for events in found]
        mine, theirs = [moment.shape for moment in united], [moment.shape for moment in moments]
        merged: list[_Moment] = []
        for tag, a, a_end, b, b_end in SequenceMatcher(a=mine, b=theirs, autojunk=False).get_opcodes():
            merged += united[a:a_end]
            if tag == "equal":
                for kept, moment in zip(united[a:a_end], moments[b:b_end], strict=True):
                    kept.handles |= moment.handles
            else:
                merged += moments[b:b_end]
        united = merged
    return united


def _moment(number: int, events: list[int], trace: Trace) -> _Moment:
    """Returns a group with its shape: for each event which of its allocations it is about, and of what module."""
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
    result.momentary.append(momentary)
    for sizes, (trace, handle) in zip(result.sizes, handles, strict=True):
        sizes.append(0 if handle is None else trace.tensors.sizes[handle])
