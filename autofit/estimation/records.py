"""Records of `autofit estimate`: plans with estimated peaks, what fits with each choice, and the whole result."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import Refusal
from autofit.estimation.what_if import PeakLaw
from autofit.memory.breakdown import Breakdown

PRECISION = "precision"
"""The knob of which the rows of autofit.estimate/1 were at first. Its values need no name beside them, and a row of it
has the key "precision" in JSON; a row of another knob also has "knob" and "value"."""


class TradedKnob(BaseModel):
    """The knob of which the smallest value that suffices was looked for.

    Attributes:
        knob: name of the knob.
        technique: what it applies.
        counted: what its values count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: str
    technique: str
    counted: str


CHECKPOINTED = TradedKnob(knob="checkpointed_blocks", technique="checkpointing", counted="blocks to checkpoint")
"""The knob for which the needs of autofit.estimate/1 were at first. JSON that names none is of this one."""


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
    """Value of the traded knob with which a micro batch fits, such as the number of checkpointed blocks.

    Attributes:
        micro_batch_size: samples in the micro batch.
        blocks: smallest value with which the micro batch fits; None if none suffices.
        estimated: the plan with that value, or with the last one if none suffices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_size: int
    blocks: int | None
    estimated: EstimatedPlan | None = None


class Row(BaseModel):
    """What fits with one value of one knob, with the baseline's values of the others.

    Attributes:
        knob: name of the knob; "" if no knob changes the memory per sample.
        value: value of the knob.
        same_as: name of the row with the same memory use, or "".
        largest: largest micro batch that fits without trading memory; None if not even the smallest fits.
        surely: size of about the largest micro batch whose upper bound also fits; None if none was found.
        capped: why no larger micro batch was tried, if `largest` is the largest possible one; else "".
        needs: for the baseline's micro batch and for a larger one; () if no knob trades memory.
        reason: why there is no estimate, or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    knob: str = ""
    value: KnobValue = ""
    same_as: str = ""
    largest: EstimatedPlan | None = None
    surely: int | None = None
    capped: str = ""
    needs: tuple[Need, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        """The choice in words; "" if there is none."""
        return str(self.value) if self.knob in ("", PRECISION) else f"{self.knob}={self.value}"

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, dict) or PRECISION not in given:
            return given
        rest = {key: value for key, value in given.items() if key != PRECISION}
        return {"knob": PRECISION, "value": given[PRECISION], **rest} if given[PRECISION] else rest

    @model_serializer(mode="wrap")
    def _write(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found = handler(self)
        if self.knob not in ("", PRECISION):
            return {PRECISION: "", **found}
        rest = {key: value for key, value in found.items() if key not in ("knob", "value")}
        return {PRECISION: self.value, **rest}


class EstimationRecord(BaseModel):
    """The memory that a workload's training will need on a device where it has not run.

    Attributes:
        schema_name: the record's schema and version.
        target: the factory that was estimated, or "" for objects that were passed in.
        environment: the device, the versions that the traces depend on, the workload's signature.
        budget: the limit on memory, with its arithmetic.
        account: how the device accounts for memory. A caveat names the origin of its figure for memory outside the
            allocator.
        own: the baseline.
        breakdown: the parts of the baseline's peak.
        traded: the knob that `needs` are about.
        rows: what fits, by choice.
        shortfall: why nothing fits, by how much, and what would help; "" if something fits.
        laws: peaks of each choice at several micro batches, for the what-if page; () if they were not asked for.
        sequence_length: T of the loader's batches, [B, T, ...]; None if their tensors have not one in common.
        caveats: notes to read before relying on the estimate.
        refused: values and strategies that would change memory and are left out, with the reason.
        duration_s: duration of the estimate in seconds.
        created: UTC time in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_name: Literal["autofit.estimate/1"] = Field(default="autofit.estimate/1", alias="schema")
    target: str = ""
    environment: Environment
    budget: Budget
    account: Account
    own: EstimatedPlan
    breakdown: Breakdown
    traded: TradedKnob = CHECKPOINTED
    rows: tuple[Row, ...]
    shortfall: str = ""
    laws: tuple[PeakLaw, ...] = ()
    sequence_length: int | None = None
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    duration_s: float = 0.0
    created: str = ""

    @model_serializer(mode="wrap")
    def _write(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        unsaid = {
            "traded": self.traded == CHECKPOINTED,
            "laws": not self.laws,
            "sequence_length": self.sequence_length is None,
        }
        return {key: value for key, value in found.items() if not unsaid.get(key)}
