"""The gate of inference: checks that a technique keeps the model's output. Training is checked by its gradient instead.

The limits are those of the gradient (`gate_result.PRECISION_COSINE`, `gate_result.PRECISION_L2`). The gate is a smoke
test on one batch: it says nothing about the quality of the model.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from autofit.core.plan import Plan
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import GateResult, judged_as_precision
from autofit.probing.survey.gradients import STATELESS, Build, State, cosine_of, difference, generators_restored
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import Batch, tensors

_ADVICE = "numerics='any' allows it nevertheless"
_NO_OUTPUT = GateResult(
    False, f"could not be checked: the output has no floating-point tensor that could be compared. {_ADVICE}"
)


def output(build: Build, compared: Compared, batch: Counted, seed: int, state: State = STATELESS) -> GateResult:
    """Compares the output under a plan with that of a reference, on the same batch and random numbers.

    Each floating-point tensor of the output is compared, and the worst one decides. Entries that are infinite or NaN
    in both outputs, such as masked logits, are left out.

    Args:
        build: makes a step of inference.
        compared: the plan and the reference.
        batch: a batch of the workload.
        seed: seed of torch's random numbers, for a model that draws them in evaluation mode too.
        state: restores what the model changes itself.
    """
    before = set(state.differences())
    reference = _outputs(build, compared.reference, batch.batch, seed)
    moves = not before.issuperset(state.differences())
    if moves:  # so that both sides start from the same state
        state.restore()
    try:
        found = _outputs(build, compared.plan, batch.batch, seed)
    finally:
        if moves:
            state.restore()
    if not reference:
        return _NO_OUTPUT
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in reference]:
        return GateResult(False, f"the output has tensors of other shapes than that of the baseline. {_ADVICE}")
    pairs = [_compared(one, other) for one, other in zip(found, reference, strict=True)]
    cosine, error = min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    judged = judged_as_precision("output", cosine, error)
    return judged if judged.passed else replace(judged, reason=f"{judged.reason}. {_ADVICE}")


def _outputs(build: Build, plan: Plan, batch: Batch, seed: int) -> list[torch.Tensor]:
    """Returns the floating-point tensors of the output under a plan, in float32."""
    with build(plan) as step, generators_restored(step.draft.device):
        torch.manual_seed(seed)
        result = step(fresh(batch))
        return [tensor.float() for tensor in _tensors(result) if tensor.is_floating_point()]


def _tensors(result: object) -> Iterator[torch.Tensor]:
    """Yields the tensors of an output: of a structure as batches have it, or of the attributes of an object."""
    found = list(tensors(result))
    yield from found or tensors(dict(getattr(result, "__dict__", {})))


def _compared(found: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """Returns the cosine of two tensors, and the L2 norm of their difference relative to that of `reference`."""
    usable = reference.isfinite()
    if not torch.equal(usable, found.isfinite()):
        return 0.0, math.inf
    one, other = found[usable], reference[usable]
    if not float(other.norm()):
        same = not float(one.norm())
        return (1.0, 0.0) if same else (0.0, math.inf)
    return cosine_of(one, other), difference(one, other)
