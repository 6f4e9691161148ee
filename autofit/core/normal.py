"""Normal: what follows from a mean and a standard deviation, where a plan may be better than another."""

import math

DEVIATIONS_95 = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""
_LEAST_DEVIATION = 1e-9


def below(z: float) -> float:
    """Returns the probability that a standard normal variable is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def expected_gain(mean: float, deviation: float) -> float:
    """Returns the mean of a normal variable, counted as nothing where it is below 0.

    Expected improvement (Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions,
    1998).
    """
    deviation = max(deviation, _LEAST_DEVIATION)
    z = mean / deviation
    return deviation * math.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + mean * below(z)
