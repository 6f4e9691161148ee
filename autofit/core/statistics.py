"""Statistics of measured throughputs: normal distribution, expected gain, outliers."""

import math
from collections.abc import Sequence
from statistics import NormalDist, median

DEVIATIONS_95 = 1.96
"""Number of standard deviations from the mean that contain 95 % of a normal distribution."""
CLIP_LOG = 0.5
"""Maximum distance of log ratios from their median: larger ones are clipped, so that one stall does not decide."""
_LEAST_DEVIATION = 1e-9
_STANDARD = NormalDist()


def below(z: float) -> float:
    """Returns the probability that a standard normal variable is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))  # NormalDist.cdf is 0 at -9, this is 1.1e-19


def expected_gain(mean: float, deviation: float) -> float:
    """Returns the mean of a normal variable with values below 0 replaced by 0.

    Expected improvement (Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions,
    1998).
    """
    deviation = max(deviation, _LEAST_DEVIATION)
    z = mean / deviation
    return deviation * _STANDARD.pdf(z) + mean * below(z)


def clipped(logs: Sequence[float]) -> list[float]:
    """Returns the values, clipped to within `CLIP_LOG` of their median."""
    middle = median(logs)
    return [max(middle - CLIP_LOG, min(middle + CLIP_LOG, log)) for log in logs]
