"""Statistics of measured throughputs: normal distribution, expected gain, outliers."""

import math
from collections.abc import Sequence
from statistics import median

DEVIATIONS_95 = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""
CLIP_LOG = 0.5
"""A pair, or a block, further than this from the median one counts as this far: one stall must not decide."""
_LEAST_DEVIATION = 1e-9


def below(z: float) -> float:
    """Returns the probability that a standard normal variable is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))  # unlike NormalDist.cdf exact in the lower tail


def expected_gain(mean: float, deviation: float) -> float:
    """Returns the mean of a normal variable, counted as nothing where it is below 0.

    Expected improvement (Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions,
    1998).
    """
    deviation = max(deviation, _LEAST_DEVIATION)
    z = mean / deviation
    return deviation * math.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + mean * below(z)


def clipped(logs: Sequence[float]) -> list[float]:
    """Returns the values, those moved to `CLIP_LOG` from the median that are further from it."""
    middle = median(logs)
    return [max(middle - CLIP_LOG, min(middle + CLIP_LOG, log)) for log in logs]
