"""Objective: what a search maximises, and which plans are treated as equally good."""

from typing import Literal

from pydantic import Field

from autofit.core.measurement import Measurement
from autofit.core.strict import Strict

TIE_RATIO = 0.02
"""Default tie margin: 2 %, which is less than the noise of 40 paired steps (reference/reliability.md 9.3)."""


class Objective(Strict):
    """Samples or useful tokens per second of whole optimizer steps.

    Attributes:
        unit: the unit of throughput. A measurement without tokens is scored in samples.
        tie_ratio: tie margin, as a share of throughput. Among plans that are on average at most this much slower than
            the fastest plan, and not separable from it by the measurements, the one with the least memory is chosen,
            then the one with the fewest changes. The baseline is kept if it is at most this much slower.
        planned_samples: number of samples in the planned training. Warm-up cost is amortised over them. The
            unit is samples, because the size of a step depends on the plan. None ignores warm-up.
    """

    unit: Literal["samples", "tokens"] = "samples"
    tie_ratio: float = Field(default=TIE_RATIO, ge=0, allow_inf_nan=False)
    planned_samples: int | None = Field(default=None, gt=0)

    def score(self, measurement: Measurement) -> float:
        """Returns the throughput of a measurement, in this objective's unit per second.

        Without `planned_samples` this is the throughput of steady steps. With `planned_samples` it is that of the whole
        training, warm-up included; a measurement with unknown warm-up is scored without it.
        """
        tokens = measurement.tokens_per_s if self.unit == "tokens" else None
        steady = measurement.samples_per_s if tokens is None else tokens
        if self.planned_samples is None or measurement.startup_s is None:
            return steady
        training_s = self.planned_samples / measurement.samples_per_s
        return steady * training_s / (training_s + measurement.startup_s)
