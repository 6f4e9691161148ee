"""The gate of padding: more padding must not change the gradient, or the model reads what should be ignored."""

from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import STATELESS, Build, State
from autofit.probing.survey.rounding_gate import same_gradient
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.lengths import elements
from autofit.workloads.tree import same, tensors

_COMPARED = 8
"""Number of batches of which the one is compared that gets the most padding."""


def padding(
    build: Build, users: BatchSource, padded: BatchSource, size: int, seed: int, state: State = STATELESS
) -> GateResult:
    """Compares the gradient of a padded batch with that of the same samples without the additional padding.

    Args:
        build: makes a train step; its model's gradients are left as None.
        users: makes the user's batches.
        padded: makes the same batches with more padding.
        size: number of samples.
        seed: for the random numbers of the step.
        state: restores what a step changes besides gradients.
    """
    made = zip(*(source.typical(size, _COMPARED) for source in (users, users, padded)), strict=True)
    plain, again, more = max(made, key=lambda batches: elements(batches[2]) - elements(batches[0]))
    if elements(more) <= elements(plain):
        return GateResult(False, "could not be checked: no batch was padded further", checked=False)
    if not all(same(one, other) for one, other in zip(tensors(plain), tensors(again), strict=True)):
        return GateResult(False, "could not be checked: the same samples give other batches each time", checked=False)
    return same_gradient(build, Counted(plain, size), Counted(more, size), seed, state)
