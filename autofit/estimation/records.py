"""Records of `autofit estimate`: plans with estimated peaks, and what fits with each choice."""

from pydantic import BaseModel, ConfigDict

from autofit.core.estimate import Estimate
from autofit.core.plan import KnobValue, Plan

PRECISION = "precision"
"""The knob whose values need no name beside them."""


class _EstimateRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TradedKnob(_EstimateRecord):
    """The knob of which the smallest value that suffices was looked for; all texts are "" if there is none.

    Attributes:
        knob: name of the knob.
        technique: what it applies.
        counted: what its values count.
    """

    knob: str = ""
    technique: str = ""
    counted: str = ""


class EstimatedPlan(_EstimateRecord):
    """A plan with its estimated peak.

    Attributes:
        plan: the plan.
        peak: estimated peak, in the reading that the budget limits.
        fits: whether the peak is within the budget.
        surely: whether the upper bound of the peak is within the budget too.
        samples_per_s: throughput at the device's peak rates. Real kernels are slower by a factor, so compare it only
            within one estimate. None if it is unknown.
    """

    plan: Plan
    peak: Estimate
    fits: bool
    surely: bool
    samples_per_s: float | None = None


class Need(_EstimateRecord):
    """Value of the traded knob with which a micro batch fits, such as the number of checkpointed blocks.

    Attributes:
        micro_batch_size: samples in the micro batch.
        blocks: smallest value with which the micro batch fits; None if none suffices.
        estimated: the plan with that value, or with the last one if none suffices.
    """

    micro_batch_size: int
    blocks: int | None
    estimated: EstimatedPlan | None = None


class Row(_EstimateRecord):
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


class PeakLaw(_EstimateRecord):
    """The peak of one choice at several micro batches. Between two of them, every part is close to a straight line.

    So it is between the first and the last value of the knob that trades memory.

    Attributes:
        knob: knob of the choice; "" if no knob changes the memory per sample.
        value: its value.
        traded: value of the knob that trades memory for time, such as the number of checkpointed blocks; 0 without one.
        length: sequence length of the batches; None for the loader's.
        sizes: micro batch sizes, ascending.
        parts: bytes at the peak by kind of tensor, one for each size. They sum to the peak.
    """

    knob: str = ""
    value: KnobValue = ""
    traded: int = 0
    length: int | None = None
    sizes: tuple[int, ...]
    parts: dict[str, tuple[int, ...]]
