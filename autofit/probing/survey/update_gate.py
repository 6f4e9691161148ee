"""The gate of a step that the user's `update_fn` does: compares the gradients that its optimizers use.

Such a step cannot be stopped before its updates: in a GAN, the gradient of the generator depends on the update of the
discriminator before. Therefore whole steps run, from the same state and with the same random numbers, and at each
update the gradients of that optimizer are noted. The worst update decides. The limits are those of the gradient
(`gate_result.PRECISION_COSINE`, `gate_result.PRECISION_L2`, `rounding_limits.ACCUMULATION_L2`).
"""

import math
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from autofit.core.plan import Plan
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import ZERO, GateResult, judged_as_precision
from autofit.probing.survey.gradients import (
    STATELESS,
    Build,
    State,
    cosine_of,
    difference,
    flat,
    generators_restored,
)
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.survey.rounding_limits import ACCUMULATION_L2
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.optimizer_set import each_of
from autofit.workloads.step import TrainStep

_COMPARED = "gradients that the optimizers use"


def update(build: Build, compared: Compared, batch: Counted, seed: int, state: State = STATELESS) -> GateResult:
    """Compares the gradients of one step under a plan with those of a reference.

    Args:
        build: makes a step whose update is the user's.
        compared: the plan, the reference, and whether the plan computes in reduced precision.
        batch: a batch that both can run.
        seed: seed of all random numbers. torch's own dropout is off.
        state: restores everything that a step changes; the weights too.
    """
    found = _difference(build, compared.plan, compared.reference, batch, seed, state)
    if isinstance(found, GateResult):
        return found
    if compared.rounded:
        return judged_as_precision(_COMPARED, *found)
    numbers = f"relative L2 of the {_COMPARED} {found[1]:.1e} (at most {ACCUMULATION_L2:g})"
    return GateResult(found[1] <= ACCUMULATION_L2, numbers)


def uneven_steps(build: Build, batch: Counted, state: State = STATELESS) -> list[str]:
    """Returns a caveat if two steps do not make the same updates, or leave an optimizer out; else an empty list.

    A probe runs few steps. If a model is trained in every fifth step only, its peak and its time may not be among them.
    """
    state.restore()
    try:
        with build(Plan()) as step, generators_restored(step.draft.device):
            made = []
            for _ in range(2):
                with _noted(step) as found:
                    step(fresh(batch.batch))
                made.append([optimizer for optimizer, _ in found])
            optimizers = () if step.draft.optimizer is None else each_of(step.draft.optimizer)
    finally:
        state.restore()
    if made[0] == made[1] and all(each in made[0] for each in optimizers):
        return []
    return [
        f"two calls of update_fn made {len(made[0])} and {len(made[1])} updates, with {len(optimizers)} "
        f"optimizer{'s' * (len(optimizers) > 1)}: peak and speed are those of the calls that were run, and others may "
        "need more. Make the same updates in each call"
    ]


def _difference(
    build: Build, plan: Plan, reference: Plan, batch: Counted, seed: int, state: State
) -> tuple[float, float] | GateResult:
    """Returns the least cosine and the greatest relative L2 norm of the updates' gradients, or why there is neither."""
    try:
        expected = _gradients(build, reference, batch, seed, state)
        if not expected:
            return GateResult(False, "could not be checked: no optimizer was stepped", checked=False)
        if not any(float(each.norm()) for each in expected):
            return ZERO
        found = _gradients(build, plan, batch, seed, state)
        compared = _worst(found, expected)
        if isinstance(compared, GateResult) or compared[1] <= ACCUMULATION_L2:
            return compared
        again = _worst(_gradients(build, reference, batch, seed, state), expected)
    finally:
        state.restore()
    if isinstance(again, GateResult) or again[1] > ACCUMULATION_L2:
        reason = "could not be checked: two steps from the same state and seed have different gradients"
        return GateResult(False, reason, checked=False)
    return compared


def _worst(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[float, float] | GateResult:
    if [len(each) for each in found] != [len(each) for each in expected]:
        return GateResult(False, f"a step makes {len(found)} updates instead of {len(expected)}, or of other weights")
    if not all(bool(each.isfinite().all()) for each in found):
        return GateResult(False, "a gradient is not finite")
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if float(one.norm() + other.norm())]
    if not all(float(other.norm()) for _, other in pairs):
        return 0.0, math.inf
    return min(cosine_of(*pair) for pair in pairs), max(difference(*pair) for pair in pairs)


def _gradients(build: Build, plan: Plan, batch: Counted, seed: int, state: State) -> list[torch.Tensor]:
    """Returns the gradients that each update of one step uses, in order, float32 and on the host."""
    state.restore()
    with build(plan) as step, dropout_off(step.draft.model), generators_restored(step.draft.device):
        _seed(seed)
        with _noted(step) as found:
            step(fresh(batch.batch))
        return [gradients for _, gradients in found]


@contextmanager
def _noted(step: TrainStep) -> Iterator[list[tuple[Optimizer, torch.Tensor]]]:
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


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
