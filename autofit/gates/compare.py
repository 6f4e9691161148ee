"""The comparison: whether two gradients are equal up to rounding, or whether two random ones have the same mean.

Every gate makes it. It is a smoke test on one batch. It says nothing about convergence.

The means are for steps whose random numbers cannot be shared. Let d be the difference of the two sides in one draw, and
w one side. The mean of d_r . d_s over all pairs of draws r != s is an unbiased estimate of the squared length of the
mean difference, at any noise level. Likewise, w_r . w_s estimates the squared length of the gradient (the two-sample
statistic of Chen and Qin, Annals of Statistics 38, 2010). The jackknife gives the standard deviation. The sides are
equal if the upper bound of the difference is below that of any known change of the objective, and differ if the lower
bound is above zero. Until then, more draws are made.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import torch
from torch import nn

from autofit.gates.verdict import GateVerdict, failed, unchecked
from autofit.workloads.step import TrainStep

ORDER_L2 = 1e-3
"""Largest relative L2 difference that another order of float32 operations may cause. Measured: 1e-7 where accumulation
is harmless, 0.26 and more where it changes the objective (the least is batch normalisation in halves)."""
TF32_L2 = 0.01
"""The same if products run in TF32, as cuDNN's convolutions do by default. Measured: about 2e-3."""
REDUCED_L2 = 0.05
"""The same in 16 bits, and largest difference of a reduced precision from float32. Measured with bf16: about 1e-2."""
PRECISION_COSINE = 0.999
"""Least cosine of a gradient in reduced precision with that in float32. Measured with bf16 autocast: 0.9999."""

MOST_L2 = 0.2
"""Relative L2 difference below which means count as equal. The mildest known change of an objective is 0.26."""
LOOKS = (8, 16, 32, 64)
"""Numbers of draws after which the test is evaluated."""
PATIENCE_S = 20.0
"""Time after which no more draws are made."""
DEVIATIONS = 3.0
"""Distance of the bounds from the estimate, in standard deviations. With this value, none of 200 comparisons was wrong,
with noise of 0.3 to 1.5 times the gradient and differences of 0, 0.26 and 0.6."""

ZERO = unchecked("the gradient is zero on this batch")


@dataclass(frozen=True, slots=True)
class Limits:
    """How far two gradients may be apart.

    Attributes:
        l2: largest L2 norm of the difference, relative to the norm of the expected gradient. It bounds the ratio of the
            norms too: |ratio - 1| is at most this.
        cosine: least cosine; None: any.
    """

    l2: float = ORDER_L2
    cosine: float | None = None


PRECISION = Limits(REDUCED_L2, PRECISION_COSINE)
"""Limits of a plan that computes in reduced precision, against one that does not."""


def compare(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], limits: Limits, what: str = "gradient"
) -> GateVerdict:
    """Compares what a plan computes with what is expected of it. The pair that is furthest apart decides.

    Both are float32 tensors on the same devices: the gradient, one for each update of a step, or the outputs. Entries
    of `expected` that are infinite or NaN, such as masked logits, are left out if they are so in `found` too.
    """
    if [each.shape for each in found] != [each.shape for each in expected]:
        return failed(f"{what}: {len(found)} instead of {len(expected)}, or of other shapes")
    worst, least = 0.0, 1.0
    for pair in zip(found, expected, strict=True):
        usable = pair[1].isfinite()
        if not torch.equal(usable, pair[0].isfinite()) or (usable.numel() and not bool(usable.any())):
            return failed(f"the {what} is not finite")
        one, other = pair if bool(usable.all()) else (each[usable] for each in pair)
        if float(other.norm()):
            apart = difference(one, other)
            worst = math.inf if math.isnan(apart) else max(worst, apart)
            if limits.cosine is not None:
                least = min(least, float(nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)))
        elif float(one.norm()):
            worst, least = math.inf, 0.0
    if limits.cosine is None:
        numbers = f"relative L2 of the {what} {worst:.1e} (at most {limits.l2:g})"
        return GateVerdict(passed=worst <= limits.l2, reason=numbers)
    numbers = f"cosine of the {what} {least:.5f} (at least {limits.cosine}), relative L2 {worst:.1e}"
    passed = worst <= limits.l2 and least >= limits.cosine
    return GateVerdict(passed=passed, reason=f"{numbers} (at most {limits.l2:g})")


@dataclass(frozen=True, slots=True)
class GradientDifference:
    """By how much the gradient of several ranks differs from that of one process.

    Attributes:
        l2: relative L2 norm of the difference.
        allowed_l2: largest norm that another order of operations may cause.
        reason: why nothing was compared; "" if it was.
    """

    l2: float = 0.0
    allowed_l2: float = 0.0
    reason: str = ""

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return not self.reason

    @property
    def objection(self) -> str:
        """What speaks against the plan, or why nothing was compared; "" if the gradient is the same."""
        if self.reason:
            return f"the gradient was not compared with that of one process: {self.reason}"
        if self.l2 <= self.allowed_l2:
            return ""
        return (
            f"the gradient of all ranks differs by {self.l2:.2g} (relative L2) from the mean of what each computes "
            f"alone; rounding explains {self.allowed_l2:.2g}"
        )


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the L2 norm of the difference, relative to that of `other`; NaN if that is zero."""
    norm = float(other.norm())
    return float((one - other).norm()) / norm if norm else math.nan


def order_l2(step: TrainStep) -> float:
    """Returns the relative L2 difference of a step's gradients that another order of operations may cause.

    Call it while the step's techniques are applied.
    """
    device, cudnn = step.draft.device.type, cast("Any", torch.backends.cudnn)
    small = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in step.draft.model.parameters())
    if small or torch.is_autocast_enabled(device):
        return REDUCED_L2
    in_tf32 = any(each.fp32_precision == "tf32" for each in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn))
    return TF32_L2 if device == "cuda" and in_tf32 else ORDER_L2


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
