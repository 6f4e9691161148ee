"""Statistics of measured throughputs: normal distribution, expected gain, outliers."""

import math
from collections.abc import Sequence
from statistics import NormalDist, median

DEVIATIONS_95 = 1.96
"""A normal variable lies within this many standard deviations of its mean with a probability of 95 %."""
CLIP_LOG = 0.5
"""Logarithms of ratios are moved to at most this distance from their median, so that one stall does not decide."""
_LEAST_DEVIATION = 1e-9
_STANDARD = NormalDist()


def below(z: float) -> float:
    """Returns the probability that a standard normal variable is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))  # NormalDist.cdf loses the lower tail: it is 0 at -9, this is 1.1e-19


def expected_gain(mean: float, deviation: float) -> float:
    """Returns the mean of the positive part of a normal variable: values below 0 count as 0.

    Expected improvement (Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions,
    1998).
    """
    deviation = max(deviation, _LEAST_DEVIATION)
    z = mean / deviation
    return deviation * _STANDARD.pdf(z) + mean * below(z)


def clipped(logs: Sequence[float]) -> list[float]:
    """Returns the values, moved to at most `CLIP_LOG` from their median."""
    middle = median(logs)
    return [max(middle - CLIP_LOG, min(middle + CLIP_LOG, log)) for log in logs]
