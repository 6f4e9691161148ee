"""Whether a gradient can be compared between precisions at all.

In a deep network whose batch normalisation uses the statistics of the batch, the gradient at an untrained model may
change completely when the weights are rounded once (Yang et al., "A mean field theory of batch normalization", ICLR
2019): no arithmetic of 16 bits can then agree with float32, and both train. ResNet-50 with random weights: rounding the
weights to bfloat16 changes the float32 gradient by relative L2 1.16, and autocast changes it by 1.32. With running
statistics it is 0.017 and 0.019.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from autofit.core.plan import Plan
from autofit.probing.survey.gate_result import PRECISION_L2, GateResult, judged_as_precision
from autofit.probing.survey.gradients import Gradients, cosine_of, difference
from autofit.probing.survey.module_modes import Modes, all_evaluating
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import Batch


def by_running_statistics(
    gradients: Gradients, plan: Plan, batch: Batch | Counted, seed: int, reference: torch.Tensor
) -> GateResult | None:
    """Returns a passing verdict with normalisation in evaluation mode; None if the first comparison is to decide.

    It decides if it could: if the gradient of float32 stays the same when the weights are rounded.
    """
    if not _uses_batch_statistics(gradients):
        return None
    moved = _moved_by_rounding(gradients, batch, seed, reference)
    if moved <= PRECISION_L2:
        return None
    found = replace(gradients, modes=all_evaluating)
    expected, reduced = found.of([batch], seed).vector, found.of([batch], seed, plan=plan).vector
    if not float(expected.norm()):
        return None
    judged = judged_as_precision("gradient", cosine_of(reduced, expected), difference(reduced, expected))
    why = (
        "compared with the running statistics of normalisation layers: with those of the batch, the float32 gradient "
        f"itself changes by relative L2 {moved:.1e} when the weights are rounded to bfloat16"
    )
    return replace(judged, reason=f"{judged.reason}, {why}") if judged.passed else None


def _uses_batch_statistics(gradients: Gradients) -> bool:
    """Returns whether normalisation layers of the model use the statistics of the batch in the compared steps."""
    with gradients.build(Plan()) as step, gradients.modes(step.draft.model):
        return any(isinstance(module, _NormBase) and module.training for module in step.draft.model.modules())


def _moved_by_rounding(gradients: Gradients, batch: Batch | Counted, seed: int, reference: torch.Tensor) -> float:
    """Returns how much the gradient of the baseline changes when the weights are rounded to bfloat16, as relative L2.

    Args:
        gradients: computes the gradients. The weights are put back afterwards.
        batch: the compared batch.
        seed: seed of the compared gradients.
        reference: gradient of the baseline on the same batch.
    """
    rounding = replace(gradients, modes=lambda model: _rounded(model, gradients.modes))
    return difference(rounding.of([batch], seed).vector, reference)


@contextmanager
def _rounded(model: nn.Module, modes: Modes) -> Iterator[None]:
    weights = [p for p in model.parameters() if p.dtype is torch.float32]
    kept = [p.detach().clone() for p in weights]
    try:
        _write(weights, [each.bfloat16() for each in kept])
        with modes(model):
            yield
    finally:
        _write(weights, kept)


@torch.no_grad()
def _write(weights: list[nn.Parameter], values: list[torch.Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)
