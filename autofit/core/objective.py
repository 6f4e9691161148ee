"""Objective: what is maximised, and when two plans are as good as each other."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.measurement import Measurement

TIE_RATIO = 0.02
"""Two plans within 2 % are a tie: below the noise of 40 paired steps (reference/reliability.md 9.3)."""


class Objective(BaseModel):
    """Samples or useful tokens per second of whole optimizer steps.

    Attributes:
        unit: what is counted. "tokens" falls back to samples for a measurement without tokens.
        tie_ratio: what a plan may lose on average, as a ratio, for less memory, then fewer changes, to decide; one that
            is slower beyond the noise never wins by them. The user's own setting may also be this much slower.
        planned_samples: samples that the training will go through; each plan is then charged what its first steps take
            longer than steady ones. Samples, because a step of another global batch is another amount of data. None
            charges nothing, as if the training never ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: Literal["samples", "tokens"] = "samples"
    tie_ratio: float = TIE_RATIO
    planned_samples: int | None = Field(default=None, gt=0)

    def score(self, measurement: Measurement) -> float:
        """Returns the throughput of `measurement` in this objective's unit per second.

        That of steady steps; with `planned_samples` that of the whole training, its start included. A measurement that
        does not know its start is charged none.
        """
        tokens = measurement.tokens_per_s if self.unit == "tokens" else None
        steady = measurement.samples_per_s if tokens is None else tokens
        if self.planned_samples is None or measurement.startup_s is None:
            return steady
        training_s = self.planned_samples / measurement.samples_per_s
        return steady * training_s / (training_s + measurement.startup_s)
