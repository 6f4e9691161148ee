"""Recorded: what an allocator was asked for in a few real steps, as the `Trace` that tracing them would have given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autofit.devices.base import Recording
from autofit.memory.trace import Kind, Mark, Tensors, Trace


@dataclass(frozen=True, slots=True)
class RecordedMark:
    """What is known where a recording was marked.

    Attributes:
        name: of the phase that begins there, as in `Mark.name`; "" for none.
        kept: what holds that was taken since the last point and is still there; None where that is not known.
        kinds: what is alive there and known by its address.
    """

    name: str
    kept: Kind | None = None
    kinds: Mapping[int, Kind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """A storage that is there before the first step."""

    size_bytes: int
    kind: Kind


def trace_of(
    recording: Recording, points: Sequence[RecordedMark], standing: Mapping[int, Standing], micro_batch_size: int
) -> Trace:
    """Returns a recording as a trace. Nothing is known of modules.

    Args:
        recording: complete.
        points: one for each mark of the recording.
        standing: the storages of the step that were there before, by address.
        micro_batch_size: samples of a micro batch.
    """
    made = _Making()
    made.stand(recording.standing, standing)
    marks, begun = [], 0
    for point, place in zip(points, recording.marks, strict=True):
        for request in recording.requests[begun:place]:
            made.ask(request.address, request.size_bytes)
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
class _Making:
    """A trace in the making."""

    sizes: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    _live: dict[int, int] = field(default_factory=dict)
    _begun: int = 0

    def stand(self, found: Mapping[int, int] | None, known: Mapping[int, Standing]) -> None:
        """Takes what was there before: what is the step's in its order, all else by size, the same in each run."""
        for address, storage in known.items():
            if found is None or address in found:
                self._take(address, storage.size_bytes if found is None else found[address], storage.kind)
        others = ((size, address) for address, size in (found or {}).items() if address not in known)
        for size, address in sorted(others):
            self._take(address, size, Kind.BUFFER)
        self._begun = len(self.sizes)

    def ask(self, address: int, size_bytes: int) -> None:
        """Serves one request; what was there before a recording began may be given back without its knowing."""
        if size_bytes >= 0:
            self._take(address, size_bytes, Kind.TEMPORARY)
        elif (handle := self._live.pop(address, None)) is not None:
            self.events.append(~handle)

    def label(self, point: RecordedMark) -> None:
        """Says what is alive at a point."""
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
