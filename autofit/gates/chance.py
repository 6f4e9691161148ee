"""Tests whether two random gradients have the same mean, for steps whose random numbers cannot be shared.

Let d be the difference of the two sides in one draw, and w one side. The mean of d_r . d_s over all pairs of draws
r != s is an unbiased estimate of the squared length of the mean difference, at any noise level. Likewise, w_r . w_s
estimates the squared length of the gradient (the two-sample statistic of Chen and Qin, Annals of Statistics 38, 2010).
The jackknife gives the standard deviation. The sides are equal if the upper bound of the difference is below that of
any known change of the objective, and differ if the lower bound is above zero. Until then, more draws are made.
"""

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from autofit.gates.compare import difference
from autofit.gates.gradients import Gradients
from autofit.gates.verdict import GateVerdict, failed, unchecked
from autofit.workloads.counted_batches import Counted

MOST_L2 = 0.2
"""Relative L2 difference below which means count as equal. The mildest known change of an objective is 0.26."""
LOOKS = (8, 16, 32, 64)
"""Numbers of draws after which the test is evaluated."""
PATIENCE_S = 20.0
"""Time after which no more draws are made."""
DEVIATIONS = 3.0
"""Distance of the bounds from the estimate, in standard deviations. With this value, none of 200 comparisons was wrong,
with noise of 0.3 to 1.5 times the gradient and differences of 0, 0.26 and 0.6."""


def by_chance(gradients: Gradients, batch: Counted, found: torch.Tensor, most: float) -> bool:
    """Returns whether the gradient of a batch differs by more than `most` from `found`, that of an earlier run."""
    return difference(gradients.of(batch, draw=1).vector, found) > most


def compare_means(draw: Callable[[int], Sequence[torch.Tensor]]) -> GateVerdict:
    """Compares the means of two random gradients. There is no verdict if the noise is too large.

    `draw` returns both sides of a draw by its number, counted from 1. Draws are independent of each other.
    """
    differences: list[torch.Tensor] = []
    sides: list[torch.Tensor] = []
    began, numbers = perf_counter(), ""
    for most in LOOKS:
        while len(sides) < most and not (numbers and perf_counter() - began > PATIENCE_S):
            one, other = (side.double() for side in draw(len(sides) + 1))
            differences.append(one - other)
            sides.append(other)
        length, (squared, deviation) = _pairs(sides)[0], _pairs(differences)
        scale = max(length, 1e-30)
        low, high = (squared - DEVIATIONS * deviation) / scale, (squared + DEVIATIONS * deviation) / scale
        numbers = (
            f"over {len(sides)} draws of the step's own random numbers the mean gradients differ by relative L2 "
            f"{math.sqrt(max(squared, 0.0) / scale):.1e}, at most {math.sqrt(max(high, 0.0)):.1e} (at most {MOST_L2:g} "
            "is allowed)"
        )
        if low > 0:
            return failed(numbers)
        if length > 0 and high <= MOST_L2**2:
            return GateVerdict(passed=True, reason=numbers)
    return unchecked(f"{numbers}: the noise of the step's random numbers is too large to decide")


def _pairs(rows: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Returns the mean product of all pairs of different rows, and its standard deviation by the jackknife."""
    count, stacked = len(rows), torch.stack(list(rows))
    products = stacked @ stacked.T
    products.fill_diagonal_(0)
    total, sums = float(products.sum()), products.sum(1)
    without = (total - 2 * sums) / ((count - 1) * (count - 2))
    deviation = math.sqrt((count - 1) / count * float((without - without.mean()).square().sum()))
    return total / (count * (count - 1)), deviation
