"""Gates of steps without a gradient of their own: those that the user's `update_fn` does, and those of inference.

A step of `update_fn` cannot be stopped before its updates: in a GAN, the gradient of the generator depends on the
update of the discriminator before. Therefore whole steps run, from the same state and with the same random numbers, and
at each update the gradients of that optimizer are noted. In inference, the output is compared.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from autofit.core.plan import Plan
from autofit.gates.compare import PRECISION, ZERO, Limits, compare
from autofit.gates.gradients import Steps, flat, generators_restored, seed_all
from autofit.gates.modes import dropout_off
from autofit.gates.technique import Compared
from autofit.gates.verdict import GateVerdict, failed, unchecked
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.optimizer_set import each_of
from autofit.workloads.step import TrainStep
from autofit.workloads.tree import tensors

_UPDATE = "gradient of an update"
_ADVICE = "numerics='any' allows it nevertheless"


def update(steps: Steps, compared: Compared, batch: Counted) -> GateVerdict:
    """Compares the gradients of each update of one step of `update_fn` under a plan with those of a reference.

    Args:
        steps: the steps. What they restore includes the weights.
        compared: the plan, the reference, and whether the plan computes in reduced precision.
        batch: a batch that both can run.
    """
    try:
        expected = _gradients(steps, compared.reference, batch)
        if not expected:
            return unchecked("no optimizer was stepped")
        if not any(float(each.norm()) for each in expected):
            return ZERO
        limits = PRECISION if compared.rounded else Limits()
        verdict = compare(_gradients(steps, compared.plan, batch), expected, limits, _UPDATE)
        if verdict.passed:
            return verdict
        again = compare(_gradients(steps, compared.reference, batch), expected, Limits(), _UPDATE)
    finally:
        steps.restore()
    return verdict if again.passed else unchecked("two steps from the same state and seed have different gradients")


def _gradients(steps: Steps, plan: Plan, batch: Counted) -> list[torch.Tensor]:
    """Returns the gradient that each update of one step uses, in order: float32 vectors on the host."""
    steps.restore()
    with steps.build(plan) as step, dropout_off(step.draft.model), generators_restored(step.draft.device):
        seed_all(steps.seed)
        with updates_noted(step) as found:
            step(fresh(batch.batch))
        return [gradients for _, gradients in found]


@contextmanager
def updates_noted(step: TrainStep) -> Iterator[list[tuple[Optimizer, torch.Tensor]]]:
    """Notes each update of the steps inside: the optimizer, with the gradients that it uses."""
    found: list[tuple[Optimizer, torch.Tensor]] = []

    def note(optimizer: Optimizer, *_: Any) -> None:
        held = (p for group in optimizer.param_groups for p in group["params"])
        trained = [p for p in held if p.requires_grad]
        found.append((optimizer, torch.cat([flat(p) for p in trained]) if trained else torch.zeros(0)))

    optimizers = each_of(step.draft.optimizer) if step.draft.optimizer is not None else ()
    hooks = [each.register_step_pre_hook(note) for each in optimizers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def output(steps: Steps, compared: Compared, batch: Counted) -> GateVerdict:
    """Compares each floating-point tensor of the output of inference under a plan with that of a reference."""
    before = set(steps.differences())
    expected = _outputs(steps, compared.reference, batch)
    moves = not before.issuperset(steps.differences())
    if moves:  # so that both sides start from the same state
        steps.restore()
    try:
        found = _outputs(steps, compared.plan, batch)
    finally:
        if moves:
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
