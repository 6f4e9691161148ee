"""Records of `autofit estimate`: plans with their estimated peaks, what fits in each precision, the whole answer."""

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
        estimated: the plan with that many blocks, or with all of them where no number suffices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_size: int
    blocks: int | None
    estimated: EstimatedPlan | None = None


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
    largest: EstimatedPlan | None = None
    surely: int | None = None
    capped: str = ""
    needs: tuple[Need, ...] = ()
    reason: str = ""


class EstimationRecord(BaseModel):
    """What a workload's training will need on a device that it has not run on.

    Attributes:
        schema_name: the record's schema and version.
        target: what was estimated: a factory, or "" for objects that were passed in.
        environment: the device, the versions that the traces depend on, the workload's signature.
        budget: the limit on memory, with its arithmetic.
        account: how the device keeps account of memory; where its figure for what lies outside the allocator is from
            is among the caveats.
        ran: micro batches of which short steps were run, since the step cannot be traced; () where nothing was run.
        own: the user's own plan.
        breakdown: what makes up its peak.
        rows: by precision.
        shortfall: why nothing fits, by how much, and what would help; "" where something fits.
        caveats: what a person should know before relying on it.
        refused: precisions and checkpointing that are left out, with the reason.
        duration_s: seconds that it took.
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
