"""Objective: what is maximised, and when two plans are as good as each other."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from autofit.core.measurement import Measurement

TIE_RATIO = 0.02
"""Two plans within 2 % are a tie: below the noise of 40 paired steps (reference/reliability.md 9.3)."""


class Objective(BaseModel):
    """Samples or useful tokens per second of whole optimizer steps.

    Attributes:
        unit: what is counted. "tokens" falls back to samples for a measurement without tokens.
        tie_ratio: relative difference below which less memory, then fewer changes, decide.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: Literal["samples", "tokens"] = "samples"
    tie_ratio: float = TIE_RATIO

    def score(self, measurement: Measurement) -> float:
        """Returns the throughput of `measurement` in this objective's unit per second."""
        tokens = measurement.tokens_per_s if self.unit == "tokens" else None
        return measurement.samples_per_s if tokens is None else tokens
