"""Objective: what a search maximises, and which plans count as equally good."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.measurement import Measurement

TIE_RATIO = 0.02
"""Default tie margin: 2 %, which is below the noise of 40 paired steps (reference/reliability.md 9.3)."""


class Objective(BaseModel):
    """Samples or useful tokens per second of whole optimizer steps.

    Attributes:
        unit: what is counted. A measurement without tokens is scored in samples.
        tie_ratio: tie margin, as a share of throughput. Among plans that lose on average at most this much to the
            fastest plan and that noise cannot separate from it, the one with less memory wins, then the one with fewer
            changes. The baseline stays if it loses no more than this.
        planned_samples: number of samples in the planned training. Warm-up cost is amortised over them. They are
            samples and not steps, because the size of a step depends on the plan. None ignores warm-up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: Literal["samples", "tokens"] = "samples"
    tie_ratio: float = TIE_RATIO
    planned_samples: int | None = Field(default=None, gt=0)

    def score(self, measurement: Measurement) -> float:
        """Returns the throughput of a measurement, in this objective's unit per second.

        Without `planned_samples` this is the throughput of steady steps. With `planned_samples` it is that of the whole
        training, warm-up included; a measurement whose warm-up is unknown counts as having none.
        """
        tokens = measurement.tokens_per_s if self.unit == "tokens" else None
        steady = measurement.samples_per_s if tokens is None else tokens
        if self.planned_samples is None or measurement.startup_s is None:
            return steady
        training_s = self.planned_samples / measurement.samples_per_s
        return steady * training_s / (training_s + measurement.startup_s)
