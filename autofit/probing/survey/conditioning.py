"""Whether a gradient can be compared at all between two plans that round differently.

In a deep network whose batch normalisation uses the statistics of the batch, the gradient at an untrained model may
change completely when the weights are rounded once (Yang et al., "A mean field theory of batch normalization", ICLR
2019): no arithmetic of 16 bits can then agree with float32, and both train. ResNet-50 with random weights: rounding the
weights to bfloat16 changes the float32 gradient by relative L2 1.16, and autocast changes it by 1.32. With running
statistics of 0 and 1 it is 0.017 and 0.019. Running statistics do not help: after 100 batches the gradient in
evaluation mode is as sensitive as in training mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from autofit.core.plan import Plan
from autofit.probing.survey.gate_result import PRECISION_L2, GateResult
from autofit.probing.survey.gradients import Gradients, difference
from autofit.probing.survey.module_modes import Modes, all_evaluating
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import Batch

MOST_OVER_ROUNDING = 2.0
"""Maximum change by a reduced precision, as a multiple of the change by rounding the weights; activations are rounded
as well. Measured on ResNet-50 and RegNet-Y: 1.1 to 1.25 with the statistics of the batch, up to 1.6 with fixed ones."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The two sides of a comparison, and what may differ between them.

    Attributes:
        plan: the plan to check.
        reference: the plan whose gradient is expected. By default nothing is applied.
        plain: the reference in float32, as far as it can be; the effect of rounding is measured on it.
        rounded: whether the plan computes in reduced precision, so that its gradient may change by `PRECISION_L2`, and
            as much as rounding the weights changes it. Otherwise it may change as another order of operations does.
        finer: the reference without techniques that round so coarsely that they change the result; None if it has none.
            Another order may then change as much of the gradient as they do: the last digits of an operand decide which
            way it is rounded. On 40 blocks, compiling changed 5.3e-2 of a float8 gradient, and float8 itself 7.0e-2.
        strict: whether the first comparison decides: chance, and rounding in normalisation, do not excuse a difference.
        before: the batch of the reference, if it is another one of the same samples: with less padding.
        most: largest difference of the gradients that is allowed in any case, as relative L2. Set by the comparison.
    """

    plan: Plan
    reference: Plan = field(default_factory=Plan)
    plain: Plan = field(default_factory=Plan)
    rounded: bool = False
    finer: Plan | None = None
    strict: bool = False
    before: Batch | Counted | None = None
    most: float = PRECISION_L2


def by_fixed_statistics(
    gradients: Gradients,
    compared: Compared,
    batch: Batch | Counted,
    seed: int,
    expected: torch.Tensor,
    error: float,
) -> GateResult | None:
    """Returns a passing verdict on a gradient that rounding alone changes; None if the first comparison is to decide.

    It decides if it could: if the gradient of float32 stays the same when the weights are rounded, or changes much
    less. Otherwise the comparison is made with fixed statistics, which depend on no batch.

    Args:
        gradients: computes the gradients.
        compared: the plans.
        batch: the compared batch.
        seed: seed of the compared gradients.
        expected: gradient of the reference on the batch.
        error: difference of the gradients, as relative L2.
    """
    if not _uses_batch_statistics(gradients):
        return None
    moved = _moved_by_rounding(gradients, compared, batch, seed, expected)
    if moved <= PRECISION_L2 or error > MOST_OVER_ROUNDING * moved:
        return None
    fixed = replace(gradients, modes=_fixed_statistics)
    reference = fixed.of([batch], seed, plan=compared.reference).vector
    if not float(reference.norm()):
        return None
    found = difference(fixed.of([batch], seed, plan=compared.plan).vector, reference)
    rounded = _moved_by_rounding(fixed, compared, batch, seed, reference)
    if not found <= max(compared.most, MOST_OVER_ROUNDING * rounded * compared.rounded):
        return None
    allowed = f"at most {compared.most:g}" + f", or {MOST_OVER_ROUNDING:g} times the second" * compared.rounded
    reason = (
        f"the gradient cannot be compared as it is: it changes by relative L2 {error:.1e}, but by {moved:.1e} in "
        f"float32 too when the weights are rounded to bfloat16. With fixed statistics in normalisation layers, these "
        f"are {found:.1e} and {rounded:.1e} ({allowed})"
    )
    return GateResult(True, reason, evaluated=True)


def _uses_batch_statistics(gradients: Gradients) -> bool:
    """Returns whether normalisation layers of the model use the statistics of the batch in the compared steps."""
    with gradients.build(Plan()) as step, gradients.modes(step.draft.model):
        return any(isinstance(module, _NormBase) and module.training for module in step.draft.model.modules())


def _moved_by_rounding(
    gradients: Gradients, compared: Compared, batch: Batch | Counted, seed: int, expected: torch.Tensor
) -> float:
    """Returns how much the plain gradient changes when the weights are rounded to bfloat16, as relative L2.

    Args:
        gradients: computes the gradients. The weights are put back afterwards.
        compared: the plans.
        batch: the compared batch.
        seed: seed of the compared gradients.
        expected: gradient of the reference on the batch.
    """
    plain = compared.plain
    before = expected if plain == compared.reference else gradients.of([batch], seed, plan=plain).vector
    rounding = replace(gradients, modes=lambda model: _rounded(model, gradients.modes))
    return difference(rounding.of([batch], seed, plan=plain).vector, before)


@contextmanager
def _fixed_statistics(model: nn.Module) -> Iterator[None]:
    """Sets every module to evaluation mode, and normalisation layers to a mean of 0 and a variance of 1."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    kept = [(norm, norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm, mean, variance in kept:
            if mean is not None and variance is not None:
                norm.running_mean, norm.running_var = torch.zeros_like(mean), torch.ones_like(variance)
        with all_evaluating(model):
            yield
    finally:
        for norm, mean, variance in kept:
            norm.running_mean, norm.running_var = mean, variance


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
