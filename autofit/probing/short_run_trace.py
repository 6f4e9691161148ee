"""Converts the recorded allocator requests of a few real steps into the `Trace` that tracing them would have given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofit.devices.base import Recording
from autofit.memory.trace import Kind, Mark, Tensors, Trace


@dataclass(frozen=True, slots=True)
class RecordedMark:
    """What is known about one mark of a recording.

    Attributes:
        name: name of the phase that begins at the mark, as in `Mark.name`; "" for none.
        kept: kind of the memory that was taken since the last mark and is still allocated; None if unknown.
        kinds: kind of each known live storage, by address.
    """

    name: str
    kept: Kind | None = None
    kinds: Mapping[int, Kind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InitialStorage:
    """A storage that is allocated before the first step."""

    size_bytes: int
    kind: Kind


def trace_of(
    recording: Recording, points: Sequence[RecordedMark], static: Mapping[int, InitialStorage], micro_batch_size: int
) -> Trace:
    """Returns a recording as a trace. The trace knows no modules.

    Args:
        recording: a complete recording.
        points: one for each mark of the recording.
        static: the step's storages that were allocated before the recording, by address.
        micro_batch_size: samples per micro batch.
    """
    made = _TraceBuilder()
    made.add_initial(recording.initial, static)
    marks, begun = [], 0
    for point, place in zip(points, recording.marks, strict=True):
        for request in recording.requests[begun:place]:
            made.request(request.address, request.size_bytes)
        begun = place
        made.label(point)
        if point.name:
            marks.append(Mark(name=point.name, event=len(made.events)))
    sizes, kinds = tuple(made.sizes), tuple(made.kinds)
    return Trace(
        micro_batch_size=micro_batch_size,
        tensors=Tensors(sizes=sizes, kinds=kinds, origins=(-1,) * len(sizes)),
        events=tuple(made.events),
        marks=tuple(marks),
    )


@dataclass(slots=True)
class _TraceBuilder:
    """A trace under construction."""

    sizes: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    _live: dict[int, int] = field(default_factory=dict)
    _begun: int = 0

    def add_initial(self, found: Mapping[int, int] | None, known: Mapping[int, InitialStorage]) -> None:
        """Adds the storages that existed before: the step's in their order, all others sorted by size."""
        for address, storage in known.items():
            if found is None or address in found:
                self._take(address, storage.size_bytes if found is None else found[address], storage.kind)
        others = ((size, address) for address, size in (found or {}).items() if address not in known)
        for size, address in sorted(others):
            self._take(address, size, Kind.BUFFER)
        self._begun = len(self.sizes)

    def request(self, address: int, size_bytes: int) -> None:
        """Adds one request. A release at an unknown address is ignored: the storage was older than the recording."""
        if size_bytes >= 0:
            self._take(address, size_bytes, Kind.TEMPORARY)
        elif (handle := self._live.pop(address, None)) is not None:
            self.events.append(~handle)

    def label(self, point: RecordedMark) -> None:
        """Sets the kinds of the storages that are alive at a mark."""
        if point.kept is not None:
            for handle in self._live.values():
                if handle >= self._begun and self.kinds[handle] is Kind.TEMPORARY:
                    self.kinds[handle] = point.kept
        for address, kind in point.kinds.items():
            if (known := self._live.get(address)) is not None:
                self.kinds[known] = kind
        self._begun = len(self.sizes)

    def _take(self, address: int, size_bytes: int, kind: Kind) -> None:
        self._live[address] = len(self.sizes)
        self.events.append(len(self.sizes))
        self.sizes.append(size_bytes)
        self.kinds.append(kind)
