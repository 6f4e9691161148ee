"""Foreseen: plans with the peaks that they are thought to have, what makes them up, and what fits."""

from pydantic import BaseModel, ConfigDict

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan

BEYOND = "allocator's cache and rounding"
"""Part of a peak: what the allocator holds beyond live tensors."""
OUTSIDE = "context and libraries"
"""Part of a peak: what the process holds on the device outside the allocator."""


class Foreseen(BaseModel):
    """A plan with the peak that it is thought to have.

    Attributes:
        plan: the plan.
        peak: in the reading that the budget is held against.
        fits: whether the peak is within the budget.
        surely: whether even the upper bound of the peak is.
        samples_per_s: throughput at the device's ceilings: for comparison with others of the same estimate only, since
            real kernels stay behind by a factor. None where it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    peak: Estimate
    fits: bool
    surely: bool
    samples_per_s: float | None = None


class Need(BaseModel):
    """How many blocks have to be checkpointed so that a micro batch fits.

    Attributes:
        micro_batch_size: samples of the micro batch.
        blocks: the smallest number of checkpointed blocks with which it fits; None where no number suffices.
        foreseen: the plan with that many blocks, or with all of them where no number suffices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_size: int
    blocks: int | None
    foreseen: Foreseen | None = None


class Row(BaseModel):
    """What fits in one precision.

    Attributes:
        precision: value of the knob; "" where the precision is the user's own choice.
        same_as: the precision whose memory this one shares, or "".
        largest: the largest micro batch that fits without checkpointing; None where not even the smallest does.
        surely: a micro batch, about the largest, of which even the upper bound fits; None where none was found.
        capped: why no larger micro batch was looked at, when `largest` is the largest of all; else "".
        needs: for the user's own micro batch and for a larger one; () where the blocks cannot be checkpointed.
        reason: why there is no estimate, or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: str
    same_as: str = ""
    largest: Foreseen | None = None
    surely: int | None = None
    capped: str = ""
    needs: tuple[Need, ...] = ()
    reason: str = ""


class Part(BaseModel):
    """A part of a peak.

    Attributes:
        name: what it is: a kind of tensor, or a module, where * stands for the numbers of repeated ones.
        size_bytes: how much of the peak it is.
        count: how many modules share the name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    count: int = 1


class Breakdown(BaseModel):
    """What makes up the peak of the user's own plan.

    Attributes:
        moment: the phase of the step in which live tensors peak.
        allocated_bytes: peak of live tensors.
        reserved_bytes: peak of the allocator's segments; None on a host, which has none.
        kinds: by kind of tensor, largest first; then what the allocator holds beyond live tensors, and what lies
            outside it. They sum to the peak.
        modules: by the module in whose pass live tensors were made, largest first; their sum is that of live tensors.
        standing: what a step keeps whatever its batch: parameters, buffers, gradients, optimizer state.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    moment: str
    allocated_bytes: int
    reserved_bytes: int | None
    kinds: tuple[Part, ...]
    modules: tuple[Part, ...]
    standing: tuple[Part, ...]

    @property
    def standing_bytes(self) -> int:
        """The sum of what stands."""
        return sum(part.size_bytes for part in self.standing)
