"""Pace: number and duration of the steps in a probe, in a block of a race and in a proof."""

import math
from dataclasses import dataclass

from autofit.core.trial import Purpose


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration of warm-up and measurement. Steps whose update the scaler skipped do not count.

    Attributes:
        warmup_least: minimum number of warm-up steps.
        warmup_most: maximum number of warm-up steps. A warning is given if times have not settled by then.
        steps_least: minimum number of measured steps.
        steps_most: maximum number of measured steps. A cycle or a window that has begun is completed.
        seconds: measuring stops after this time, once `steps_least` steps are done.
        patience_s: limit for the warm-up and for the measurement, even if `steps_least` is not reached. At least one
            step, one cycle or one window is always measured.
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
    Purpose.PROOF: Pace(warmup_least=1, warmup_most=4, steps_least=3, steps_most=5, seconds=0.1),
}
"""A proof times few steps: the speed of its plan is measured by a race, or by the blocks of a night. The speed of the
proof is only checked against that, within a factor (`autofit.search.contradiction.SPEED_RATIO`)."""
PATIENCE_SHARE = 0.25
"""Maximum share of the remaining time for the warm-up of a proof, and for its timing; at least one step each."""
SLOW_PACE = Pace(warmup_least=1, warmup_most=1, steps_least=1, steps_most=2, seconds=0.0, patience_s=3.0)
"""Pace of a probe with slow steps (`SLOW_S`), for which those on the worst batch are a warm-up too: one step of
warm-up, and two that are timed unless they take longer than 3 s."""
