"""Records of `autofit estimate`: plans with estimated peaks, what fits in each precision, and the whole result."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.memory.breakdown import Breakdown


class EstimatedPlan(BaseModel):
    """A plan with its estimated peak.

    Attributes:
        plan: the plan.
        peak: estimated peak, in the reading that the budget limits.
        fits: whether the peak is within the budget.
        surely: whether the upper bound of the peak is within the budget too.
        samples_per_s: throughput at the device's peak rates. Real kernels are slower by a factor, so compare it only
            within one estimate. None if it is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    peak: Estimate
    fits: bool
    surely: bool
    samples_per_s: float | None = None


class Need(BaseModel):
    """Number of blocks that have to be checkpointed so that a micro batch fits.

    Attributes:
        micro_batch_size: samples in the micro batch.
        blocks: smallest number of checkpointed blocks with which the micro batch fits; None if no number suffices.
        estimated: the plan with that number of blocks, or with all blocks if no number suffices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_size: int
    blocks: int | None
    estimated: EstimatedPlan | None = None


class Row(BaseModel):
    """What fits in one precision.

    Attributes:
        precision: value of the knob; "" if the precision is not searched.
        same_as: the precision with the same memory use, or "".
        largest: largest micro batch that fits without checkpointing; None if not even the smallest fits.
        surely: size of about the largest micro batch whose upper bound also fits; None if none was found.
        capped: why no larger micro batch was tried, if `largest` is the largest possible one; else "".
        needs: for the baseline's micro batch and for a larger one; () if the blocks cannot be checkpointed.
        reason: why there is no estimate, or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: str
    same_as: str = ""
    largest: EstimatedPlan | None = None
    surely: int | None = None
    capped: str = ""
    needs: tuple[Need, ...] = ()
    reason: str = ""


class EstimationRecord(BaseModel):
    """The memory that a workload's training will need on a device where it has not run.

    Attributes:
        schema_name: the record's schema and version.
        target: the factory that was estimated, or "" for objects that were passed in.
        environment: the device, the versions that the traces depend on, the workload's signature.
        budget: the limit on memory, with its arithmetic.
        account: how the device accounts for memory. A caveat names the origin of its figure for memory outside the
            allocator.
        ran: micro batch sizes at which short steps were run because the step cannot be traced; () if nothing was run.
        own: the baseline.
        breakdown: the parts of the baseline's peak.
        rows: what fits, by precision.
        shortfall: why nothing fits, by how much, and what would help; "" if something fits.
        caveats: notes to read before relying on the estimate.
        refused: precisions and checkpointing that are left out, with the reason.
        duration_s: duration of the estimate in seconds.
        created: UTC time in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_name: Literal["autofit.estimate/1"] = Field(default="autofit.estimate/1", alias="schema")
    target: str = ""
    environment: Environment
    budget: Budget
    account: Account
    ran: tuple[int, ...] = ()
    own: EstimatedPlan
    breakdown: Breakdown
    rows: tuple[Row, ...]
    shortfall: str = ""
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    duration_s: float = 0.0
    created: str = ""
