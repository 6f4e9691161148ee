"""The gate of techniques: compares the gradient of a batch under a plan with that under another plan.

Both sides draw the same random numbers for the same samples (`draws`) and start from the same state. If a step draws
numbers that cannot be shared, the means of many draws are compared (`chance`). Gradients are compared in evaluation
mode, or in training mode if the step fails in evaluation mode: an object detector has no loss there, and recurrent
kernels of cuDNN have no backward pass.

Some gradients cannot be compared as they are. In a deep network whose batch normalisation uses the statistics of the
batch, the gradient at an untrained model may change completely when the weights are rounded once (Yang et al., "A mean
field theory of batch normalization", ICLR 2019): no arithmetic of 16 bits can then agree with float32, and both train.
ResNet-50 with random weights: rounding the weights to bfloat16 changes the float32 gradient by relative L2 1.16, and
autocast changes it by 1.32. With running statistics of 0 and 1 it is 0.017 and 0.019. Running statistics do not help:
after 100 batches the gradient in evaluation mode is as sensitive as in training mode.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from autofit.core.plan import Plan
from autofit.failures.evidence import named_error
from autofit.gates.chance import by_chance, in_means
from autofit.gates.compare import PRECISION_COSINE, REDUCED_L2, ZERO, Limits, compare, difference
from autofit.gates.gradients import Gradients, Steps
from autofit.gates.modes import Modes, dropout_off, evaluating
from autofit.gates.verdict import GateVerdict
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
        rounded: whether the plan computes in reduced precision, so that its gradient may change by `REDUCED_L2`, and as
            much as rounding the weights changes it. Otherwise it may change as another order of operations does.
        strict: whether the first comparison decides: chance, and rounding in normalisation, do not excuse a difference.
        before: the batch of the reference, if it is another one of the same samples: with less padding.
    """

    plan: Plan
    reference: Plan = field(default_factory=Plan)
    rounded: bool = False
    strict: bool = False
    before: Batch | Counted | None = None

    def limits(self, order_l2: float) -> Limits:
        """Returns how far both sides may be apart, if another order of operations may cause a difference of this."""
        cosine = PRECISION_COSINE if self.rounded and self.reference == Plan() else None
        return Limits(max(order_l2, REDUCED_L2) if self.rounded else order_l2, cosine)


def technique(steps: Steps, compared: Compared, batch: Batch | Counted) -> GateVerdict:
    """Compares the gradient of a batch, which both plans can run, under a plan with that of a reference."""
    return in_either_mode(steps, lambda gradients: _compared(gradients, compared, batch))


def in_either_mode(steps: Steps, judge: Callable[[Gradients], GateVerdict]) -> GateVerdict:
    """Returns what `judge` finds in evaluation mode; in training mode, without dropout, if that fails."""
    try:
        return judge(Gradients(steps))
    except Exception as error:  # noqa: BLE001  # raised by the user's code: a step that runs in training mode only
        why = named_error(error)
    found = judge(Gradients(steps, dropout_off))
    reason = f"{found.reason}; compared in training mode, as evaluation mode fails: {why}"
    return found.model_copy(update={"reason": reason})


def _compared(gradients: Gradients, compared: Compared, batch: Batch | Counted) -> GateVerdict:
    with gradients:
        before = batch if compared.before is None else compared.before
        expected = gradients.rehearse(before)
        if compared.reference != Plan():
            expected = gradients.of([before], compared.reference)
        if not float(expected.vector.norm()):
            return ZERO
        found = gradients.of([batch], compared.plan)
        limits = compared.limits(max(found.order_l2, expected.order_l2))
        verdict = compare([found.vector], [expected.vector], limits)
        if verdict.passed or compared.strict or not bool(found.vector.isfinite().all()):
            return verdict
        if by_chance(gradients, batch, expected.vector, limits.l2):
            means = in_means(gradients, ([batch], compared.plan), ([batch], compared.reference))
            return means.model_copy(update={"compared": True})  # too much noise to decide is a failure
        error = difference(found.vector, expected.vector)
        with suppress(Exception):  # rounding cannot be measured in float32, such as for lack of memory
            return _by_fixed_statistics(gradients, compared, batch, error, limits.l2) or verdict
        return verdict


def _by_fixed_statistics(
    gradients: Gradients, compared: Compared, batch: Batch | Counted, error: float, most: float
) -> GateVerdict | None:
    """Returns a passing verdict on a gradient that rounding alone changes; None if the first comparison is to decide.

    It decides if it could: if the gradient of float32 stays the same when the weights are rounded, or changes much
    less. Otherwise the comparison is made with fixed statistics, which depend on no batch.

    Args:
        gradients: computes the gradients.
        compared: the plans.
        batch: the compared batch.
        error: difference of the gradients, as relative L2.
        most: the largest difference that is allowed in any case.
    """
    with gradients.steps.build(Plan()) as step, gradients.modes(step.draft.model):
        if not any(isinstance(module, _NormBase) and module.training for module in step.draft.model.modules()):
            return None
    moved = _moved_by_rounding(gradients, batch)
    if moved <= REDUCED_L2 or error > MOST_OVER_ROUNDING * moved:
        return None
    fixed = replace(gradients, modes=_fixed_statistics)
    reference = fixed.of([batch], compared.reference).vector
    if not float(reference.norm()):
        return None
    found = difference(fixed.of([batch], compared.plan).vector, reference)
    rounded = _moved_by_rounding(fixed, batch)
    if not found <= max(most, MOST_OVER_ROUNDING * rounded * compared.rounded):
        return None
    allowed = f"at most {most:g}" + f", or {MOST_OVER_ROUNDING:g} times the second" * compared.rounded
    reason = (
        f"the gradient cannot be compared as it is: it changes by relative L2 {error:.1e}, but by {moved:.1e} in "
        f"float32 too when the weights are rounded to bfloat16. With fixed statistics in normalisation layers, these "
        f"are {found:.1e} and {rounded:.1e} ({allowed})"
    )
    return GateVerdict(passed=True, reason=reason, evaluated=True)


def _moved_by_rounding(gradients: Gradients, batch: Batch | Counted) -> float:
    """Returns how much the baseline's gradient changes when the weights are rounded to bfloat16, as relative L2."""
    rounding = replace(gradients, modes=lambda model: _rounded(model, gradients.modes))
    return difference(rounding.of([batch]).vector, gradients.of([batch]).vector)


@contextmanager
def _fixed_statistics(model: nn.Module) -> Iterator[None]:
    """Sets every module to evaluation mode, and normalisation layers to a mean of 0 and a variance of 1."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    kept = [(norm, norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm, mean, variance in kept:
            if mean is not None and variance is not None:
                norm.running_mean, norm.running_var = torch.zeros_like(mean), torch.ones_like(variance)
        with evaluating(model, keep=()):
            yield
    finally:
        for norm, mean, variance in kept:
            norm.running_mean, norm.running_var = mean, variance


@contextmanager
def _rounded(model: nn.Module, modes: Modes) -> Iterator[None]:
    """Rounds the weights to bfloat16, and puts them back."""
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
