"""Trace: every allocation and release of a few training steps, in order, as they would reach the device's allocator."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, model_validator

from autofit.core.work import StepWork

MOST_PARTS = 2
"""Micro batches of a step that a trace has at most: beyond the second no new kind of tensor is live."""


class Kind(StrEnum):
    """What an allocation holds."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    BATCH = "batch"
    ACTIVATION = "activation"  # made in the forward pass and alive at its end
    TEMPORARY = "temporary"  # anything else, what an operator takes and gives back inside one call included
    WORKSPACE = "workspace"  # a library's, such as cuBLAS's, taken from the same allocator


class Tensors(BaseModel):
    """Allocations of a trace, column by column; the index of an entry is the allocation's handle.

    Attributes:
        sizes: bytes asked for; 0 never reaches the allocator.
        kinds: what each holds.
        origins: index into `Trace.modules` of the module in whose forward or backward pass it was made; -1 for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    origins: tuple[int, ...]

    @model_validator(mode="after")
    def _check(self) -> "Tensors":
        if not len(self.sizes) == len(self.kinds) == len(self.origins):
            raise ValueError("the columns of a trace's tensors differ in length")
        return self


class Mark(BaseModel):
    """A point between two events at which something begins.

    Attributes:
        name: "step 1 forward", "step 1 backward", "step 1 optimizer", "step 2 forward", ..., "end".
        event: number of events before it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    event: int


class Trace(BaseModel):
    """Every allocation and release of a few training steps.

    Attributes:
        micro_batch_size: samples of a micro batch.
        tensors: the allocations.
        events: `handle` for an allocation, `~handle` (negative) for its release, in order. What is alive before the
            first step is allocated by the first events.
        marks: where phases begin, in order; the last is "end".
        modules: qualified names of the modules that `Tensors.origins` points to.
        answered: data-dependent results that were answered with their largest size: the trace is an upper bound there.
        notes: what a person should know of this trace.
        work: what a step computes and moves; None where that could not be counted, or is of another micro batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_size: int
    tensors: Tensors
    events: tuple[int, ...]
    marks: tuple[Mark, ...]
    modules: tuple[str, ...] = ()
    answered: int = 0
    notes: tuple[str, ...] = ()
    work: StepWork | None = None

    def alive(self, count: int) -> set[int]:
        """Returns the handles of what is alive after the first `count` events."""
        found = set[int]()
        for handle in self.events[:count]:
            if handle >= 0:
                found.add(handle)
            else:
                found.discard(~handle)
        return found

    def batch_bytes(self) -> int:
        """Returns the most bytes of batches that are alive at once: of all micro batches of a step, on a host."""
        live = most = 0
        sizes, kinds = self.tensors.sizes, self.tensors.kinds
        for event in self.events:
            handle = event if event >= 0 else ~event
            if kinds[handle] is Kind.BATCH:
                live += sizes[handle] if event >= 0 else -sizes[handle]
                most = max(most, live)
        return most
