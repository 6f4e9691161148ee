"""Trace: every allocation and release of a few training steps, in the order in which the allocator would see them."""

from collections.abc import Iterator
from enum import StrEnum

from pydantic import model_validator

from autofit.core.strict import Strict
from autofit.core.work import StepWork

MOST_PARTS = 2
"""Maximum number of micro batches per step in a trace: after the second, no new kind of tensor is live."""


class Kind(StrEnum):
    """What an allocation holds."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    BATCH = "batch"
    ACTIVATION = "activation"  # made in the forward pass and alive at its end
    TEMPORARY = "temporary"  # anything else, including memory that an operator allocates and frees
    WORKSPACE = "workspace"  # of a library such as cuBLAS, from the same allocator


class Tensors(Strict):
    """Allocations of a trace, by column. The index of an entry is the allocation's handle.

    Attributes:
        sizes: requested bytes. Requests of 0 bytes do not reach the allocator.
        kinds: content of each allocation.
        origins: index in `Trace.modules` of the module in whose forward or backward pass it was made. -1 if none.
        streams: number of the device's stream for which it was made, 0 for the one that computes. () if all are on it.
    """

    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    origins: tuple[int, ...]
    streams: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "Tensors":
        lengths = {len(self.kinds), len(self.origins), len(self.streams) or len(self.sizes)}
        if lengths != {len(self.sizes)}:
            raise ValueError("the columns of a trace's tensors differ in length")
        return self

    def stream(self, handle: int) -> int:
        """Returns the number of the stream for which an allocation was made."""
        return self.streams[handle] if self.streams else 0


class Mark(Strict):
    """A point between two events at which a phase begins.

    Attributes:
        name: "step 1 forward", "step 1 backward", "step 1 optimizer", "step 2 forward", ..., "end".
        event: number of events before the mark.
    """

    name: str
    event: int


class Trace(Strict):
    """Every allocation and release of a few training steps.

    Attributes:
        micro_batch_size: samples per micro batch.
        tensors: the allocations.
        events: `handle` for an allocation, `~handle` (negative) for its release, in order. The first events allocate
            the tensors that exist before the first step.
        marks: where phases begin, in order. The last is "end".
        modules: qualified names of the modules to which `Tensors.origins` refers.
        answered: number of data-dependent results that were assumed to have their largest size, for which the trace is
            an upper bound.
        notes: notes for the user.
        work: operations and memory traffic of a step. None if it could not be counted or is of another micro batch.
    """

    micro_batch_size: int
    tensors: Tensors
    events: tuple[int, ...]
    marks: tuple[Mark, ...]
    modules: tuple[str, ...] = ()
    answered: int = 0
    notes: tuple[str, ...] = ()
    work: StepWork | None = None

    def alive(self, count: int) -> set[int]:
        """Returns the handles of the allocations that are alive after the first `count` events."""
        found = set[int]()
        for handle in self.events[:count]:
            if handle >= 0:
                found.add(handle)
            else:
                found.discard(~handle)
        return found

    def live_bytes(self, kind: Kind | None = None) -> Iterator[int]:
        """Yields the bytes of live tensors after each event; with a kind, of those of that kind."""
        live, sizes, kinds = 0, self.tensors.sizes, self.tensors.kinds
        for event in self.events:
            handle = event if event >= 0 else ~event
            if kind is None or kinds[handle] is kind:
                live += sizes[handle] if event >= 0 else -sizes[handle]
            yield live
