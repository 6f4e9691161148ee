"""Rounding limits: how much of a gradient another order of the same operations may change."""

from typing import Any

import torch

from autofit.workloads.step import TrainStep

ACCUMULATION_L2 = 1e-3
TF32_L2, REDUCED_L2 = 0.01, 0.05
"""Limits if products are computed in TF32, as cuDNN's convolutions are by default, and if the model itself computes in
16 bits. Rounding alone is then about 2e-3 and 1e-2, and no change of the objective was ever below 0.26."""


def most_l2(step: TrainStep) -> float:
    """Returns the relative L2 difference of a step's gradients that another order of operations may cause.

    Call it while the step's techniques are applied.
    """
    device = step.draft.device.type
    small = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in step.draft.model.parameters())
    if small or torch.is_autocast_enabled(device):
        return REDUCED_L2
    return TF32_L2 if device == "cuda" and _multiplies_in_tf32() else ACCUMULATION_L2


def _multiplies_in_tf32() -> bool:
    """Returns whether some float32 products run in TF32 on CUDA."""
    cudnn: Any = torch.backends.cudnn
    return any(each.fp32_precision == "tf32" for each in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn))
