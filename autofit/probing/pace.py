"""Pace: how many steps are run, and for how long, in a probe, a block of a race and a proof."""

import math
from dataclasses import dataclass

from autofit.core.trial import Purpose


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to warm up and to measure. Steps whose update the scaler skipped do not count.

    Attributes:
        warmup_least: steps before measuring, at least.
        warmup_most: steps before measuring, at most; reaching it unsettled is a warning.
        steps_least: measured steps, at least.
        steps_most: measured steps, at most; a cycle that began is completed, and so is a window.
        seconds: measuring stops after this time once `steps_least` are done.
        patience_s: once warming up or measuring took this long, what was run has to do; one step, one cycle or one
            window is always measured.
    """

    warmup_least: int
    warmup_most: int
    steps_least: int
    steps_most: int
    seconds: float
    patience_s: float = math.inf


PACES = {
    Purpose.PROBE: Pace(warmup_least=1, warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0),
    Purpose.BLOCK: Pace(warmup_least=1, warmup_most=1, steps_least=4, steps_most=4, seconds=0.0, patience_s=10.0),
    Purpose.PROOF: Pace(warmup_least=1, warmup_most=4, steps_least=5, steps_most=10, seconds=1.0),
}
PATIENCE_SHARE = 0.25
"""Where time is short, warming up and timing in a proof take this share each of what is left, or a step."""
