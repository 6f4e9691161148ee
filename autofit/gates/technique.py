"""The gate of techniques: compares what a step computes under a plan with what it computes under another.

In training it is the gradient of a batch, in inference the output. Both sides draw the same random numbers for the same
samples (`draws`) and start from the same state. If a step draws numbers that cannot be shared, the means of many draws
are compared (`chance`). Gradients are compared in evaluation mode, or in training mode if the step fails in evaluation
mode: an object detector has no loss there.

A step of the user's `update_fn` cannot be stopped before its updates: in a GAN, the gradient of the generator depends
on the update of the discriminator before. There whole steps run, and the gradients are those that each update uses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.plan import Plan
from autofit.failures.evidence import named_error
from autofit.gates.compare import PRECISION, REDUCED_L2, ZERO, Limits, compare, compare_means, difference
from autofit.gates.gradients import BASELINE, Gradients, Steps, generators_restored, seed_all, sketch
from autofit.gates.modes import Modes, attributes_set, dropout_off, evaluating
from autofit.gates.verdict import GateVerdict, failed, unchecked
from autofit.torch_internals import NormBase
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.step import TrainStep
from autofit.workloads.tree import tensors
from autofit.workloads.workload import each_of

MOST_OVER_ROUNDING = 2.0
"""Maximum change by a reduced precision, as a multiple of the change by rounding the weights; activations are rounded
as well. Measured on ResNet-50 and RegNet-Y: 1.1 to 1.25 with the statistics of the batch, up to 1.6 with fixed ones."""
_UPDATE = "gradient of an update"
_ADVICE = "numerics='any' allows it nevertheless"


def technique(
    steps: Steps,
    plan: Plan,
    batch: Counted,
    *,
    reference: Plan = BASELINE,
    rounded: bool = False,
    strict: bool = False,
) -> GateVerdict:
    """Compares the gradient of a batch under a plan with that under a reference, on a batch that both can run.

    With `rounded`, the plan computes in reduced precision, so that its gradient may change by `REDUCED_L2`, and as much
    as rounding the weights changes it. Otherwise it may change as another order of operations does. With `strict`, the
    first comparison decides: chance, and rounding in normalisation, do not excuse a difference.
    """
    sides = _Sides(plan, reference, batch, rounded, strict)
    try:
        return sides.compared(Gradients(steps))
    except Exception as error:  # noqa: BLE001  # raised by the user's code: a step that runs in training mode only
        why = named_error(error)
    found = sides.compared(Gradients(steps, dropout_off))
    reason = f"{found.reason}; compared in training mode, as evaluation mode fails: {why}"
    return found.model_copy(update={"reason": reason})


@dataclass(frozen=True, slots=True)
class _Sides:
    """The arguments of `technique`."""

    plan: Plan
    reference: Plan
    batch: Counted
    rounded: bool
    strict: bool

    def compared(self, gradients: Gradients) -> GateVerdict:
        with gradients:
            expected = gradients.rehearse(self.batch)
            if self.reference != BASELINE:
                expected = gradients.of(self.batch, self.reference)
            if not float(expected.vector.norm()):
                return ZERO
            found = gradients.of(self.batch, self.plan)
            limits = Limits(max(found.order_l2, expected.order_l2))
            if self.rounded:
                limits = PRECISION if self.reference == BASELINE else Limits(REDUCED_L2)
            verdict = compare([found.vector], [expected.vector], limits)
            if verdict.passed or self.strict or not bool(found.vector.isfinite().all()):
                return verdict
            if gradients.vary(self.batch, expected.vector, limits.l2):
                means = compare_means(partial(self._drawn, gradients))
                return means.model_copy(update={"compared": True})  # too much noise to decide is a failure
            error = difference(found.vector, expected.vector)
            with suppress(Exception):  # rounding cannot be measured in float32, such as for lack of memory
                return self._by_fixed_statistics(gradients, error, limits.l2) or verdict
            return verdict

    def _drawn(self, gradients: Gradients, draw: int) -> list[torch.Tensor]:
        expected = gradients.of(self.batch, self.reference, draw=draw, record=True)
        return [gradients.of(self.batch, self.plan, draw=draw).vector, expected.vector]

    def _by_fixed_statistics(self, gradients: Gradients, error: float, most: float) -> GateVerdict | None:
        """Returns a passing verdict on a gradient that rounding alone changes; None if the comparison is to decide.

        In a deep network whose batch normalisation uses the statistics of the batch, the gradient at an untrained model
        may change completely when the weights are rounded once (Yang et al., "A mean field theory of batch
        normalization", ICLR 2019). ResNet-50 with random weights: rounding the weights to bfloat16 changes the float32
        gradient by relative L2 1.16, and autocast by 1.32; with running statistics of 0 and 1, by 0.017 and 0.019.
        So no arithmetic in 16 bits agrees with float32 there, although both train. The comparison is then made with
        these statistics. `error` is the relative L2 difference that was found; it decides if rounding changes the
        gradient much less. `most` is allowed in any case.
        """
        with gradients.steps.build(BASELINE) as step, gradients.modes(step.draft.model):
            if not any(isinstance(module, NormBase) and module.training for module in step.draft.model.modules()):
                return None
        moved = _moved_by_rounding(gradients, self.batch)
        if moved <= REDUCED_L2 or error > MOST_OVER_ROUNDING * moved:
            return None
        fixed = replace(gradients, modes=_fixed_statistics)
        expected = fixed.of(self.batch, self.reference).vector
        found = difference(fixed.of(self.batch, self.plan).vector, expected)
        rounding = _moved_by_rounding(fixed, self.batch)
        if not found <= max(most, MOST_OVER_ROUNDING * rounding * self.rounded):  # also if there is no gradient
            return None
        allowed = f"at most {most:g}" + f", or {MOST_OVER_ROUNDING:g} times the second" * self.rounded
        reason = (
            f"the gradient cannot be compared as it is: it changes by relative L2 {error:.1e}, but by {moved:.1e} in "
            f"float32 too when the weights are rounded to bfloat16. With fixed statistics in normalisation layers, "
            f"these are {found:.1e} and {rounding:.1e} ({allowed})"
        )
        return GateVerdict(passed=True, reason=reason, evaluated=True)


def _moved_by_rounding(gradients: Gradients, batch: Counted) -> float:
    """Returns how much the baseline's gradient changes when the weights are rounded to bfloat16, as relative L2."""
    rounding = replace(gradients, modes=lambda model: _rounded(model, gradients.modes))
    return difference(rounding.of(batch).vector, gradients.of(batch).vector)


@contextmanager
def _fixed_statistics(model: nn.Module) -> Iterator[None]:
    """Sets every module to evaluation mode, and normalisation layers to a mean of 0 and a variance of 1."""
    norms = [norm for norm in model.modules() if isinstance(norm, NormBase)]
    made = (("running_mean", torch.zeros_like), ("running_var", torch.ones_like))
    fixed = [
        (norm, name, make(found)) for norm in norms for name, make in made if (found := getattr(norm, name)) is not None
    ]
    with attributes_set(fixed), evaluating(model, keep=()):
        yield


@contextmanager
def _rounded(model: nn.Module, modes: Modes) -> Iterator[None]:
    """Rounds the weights to bfloat16, and puts them back."""
    kept = [(p.detach(), p.detach().clone()) for p in model.parameters() if p.dtype is torch.float32]
    try:
        for weight, value in kept:
            weight.copy_(value.bfloat16())
        with modes(model):
            yield
    finally:
        for weight, value in kept:
            weight.copy_(value)


def update(
    steps: Steps, plan: Plan, batch: Counted, *, reference: Plan = BASELINE, rounded: bool = False
) -> GateVerdict:
    """Compares the gradients that each update of one step of `update_fn` uses; otherwise as `technique`."""
    try:
        expected = _of_updates(steps, reference, batch)
        if not expected:
            return unchecked("no optimizer was stepped")
        if not any(float(each.norm()) for each in expected):
            return ZERO
        found = _of_updates(steps, plan, batch)
        verdict = compare(found, expected, PRECISION if rounded else Limits(), _UPDATE)
        if verdict.passed:
            return verdict
        again = compare(_of_updates(steps, reference, batch), expected, Limits(), _UPDATE)
    finally:
        steps.restore()
    return verdict if again.passed else unchecked("two steps from the same state and seed have different gradients")


def _of_updates(steps: Steps, plan: Plan, batch: Counted) -> list[torch.Tensor]:
    """Returns the gradient that each update of one step uses, in order: as `sketch` makes it."""
    steps.restore()
    with steps.build(plan) as step, dropout_off(step.draft.model), generators_restored(step.draft.device):
        seed_all(steps.seed)
        with updates_noted(step) as found:
            step(fresh(batch.batch))
        return [gradients for _, gradients in found]


@contextmanager
def updates_noted(step: TrainStep) -> Iterator[list[tuple[Optimizer, torch.Tensor]]]:
    """Notes each update of the steps inside: the optimizer, with the sketch of the gradients that it uses."""
    found: list[tuple[Optimizer, torch.Tensor]] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        held = (p for group in optimizer.param_groups for p in group["params"])
        found.append((optimizer, sketch([p for p in held if p.requires_grad])))

    optimizers = each_of(step.draft.optimizer) if step.draft.optimizer is not None else ()
    hooks = [each.register_step_pre_hook(note) for each in optimizers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def output(steps: Steps, plan: Plan, batch: Counted, reference: Plan = BASELINE) -> GateVerdict:
    """Compares each floating-point tensor of the output of inference with a reference's, as in reduced precision."""
    try:
        expected = _outputs(steps, reference, batch)
        steps.restore()  # so that both sides start from the same state
        found = _outputs(steps, plan, batch)
    finally:
        steps.restore()
    if not expected:
        return failed(f"could not be checked: the output has no floating-point tensor to compare. {_ADVICE}")
    verdict = compare(found, expected, PRECISION, "output")
    return verdict if verdict.passed else failed(f"{verdict.reason}. {_ADVICE}")


def _outputs(steps: Steps, plan: Plan, batch: Counted) -> Sequence[torch.Tensor]:
    """Returns the floating-point tensors of the output, in float32: of a structure, or of an object's attributes."""
    with steps.build(plan) as step, generators_restored(step.draft.device):
        torch.manual_seed(steps.seed)
        result = step(fresh(batch.batch))
        found = list(tensors(result)) or list(tensors(dict(getattr(result, "__dict__", {}))))
        return [tensor.float() for tensor in found if tensor.is_floating_point()]
