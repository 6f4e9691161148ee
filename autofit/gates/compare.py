"""The comparison: whether two gradients are equal up to rounding. Every gate makes it.

It is a smoke test on one batch. It says nothing about convergence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the L2 norm of the difference, relative to that of `other`; NaN if that is zero."""
    norm = float(other.norm())
    return float((one - other).norm()) / norm if norm else math.nan


def order_l2(step: TrainStep) -> float:
    """Returns the relative L2 difference of a step's gradients that another order of operations may cause.

    Call it while the step's techniques are applied.
    """
    device = step.draft.device.type
    small = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in step.draft.model.parameters())
    if small or torch.is_autocast_enabled(device):
        return REDUCED_L2
    return TF32_L2 if device == "cuda" and _multiplies_in_tf32() else ORDER_L2


def _multiplies_in_tf32() -> bool:
    """Returns whether some float32 products run in TF32 on CUDA."""
    cudnn: Any = torch.backends.cudnn
    return any(each.fp32_precision == "tf32" for each in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn))
