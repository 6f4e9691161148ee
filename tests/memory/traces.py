"""Small traces for tests, written as a step would make them."""

from autofit.memory.trace import Kind, Mark, Tensors, Trace


class Script:
    """Writes a trace event by event."""

    def __init__(self, micro_batch_size: int = 1, modules: tuple[str, ...] = ()) -> None:
        self._size = micro_batch_size
        self._modules = modules
        self._columns: list[tuple[int, Kind, int]] = []
        self._events: list[int] = []
        self._marks: list[Mark] = []

    def take(self, size: int, kind: Kind = Kind.TEMPORARY, origin: int = -1) -> int:
        """Allocates; returns the handle."""
        self._columns.append((size, kind, origin))
        self._events.append(len(self._columns) - 1)
        return len(self._columns) - 1

    def give(self, *handles: int) -> None:
        """Releases, in the order given."""
        self._events += [~handle for handle in handles]

    def moment(self, *sizes: int) -> None:
        """Takes temporaries and gives them back in reverse."""
        self.give(*reversed([self.take(size) for size in sizes]))

    def mark(self, name: str) -> None:
        """Begins a phase."""
        self._marks.append(Mark(name=name, event=len(self._events)))

    def trace(self) -> Trace:
        """Returns what was written, with its end marked."""
        self.mark("end")
        sizes, kinds, origins = zip(*self._columns, strict=True) if self._columns else ((), (), ())
        return Trace(
            micro_batch_size=self._size,
            tensors=Tensors(sizes=sizes, kinds=kinds, origins=origins),
            events=tuple(self._events),
            marks=tuple(self._marks),
            modules=self._modules,
        )
