"""The batch that shows what more padding changes: a model may read what should be ignored."""

from autofit.probing.survey.gate_result import GateResult
from autofit.workloads.batches import BatchSource
from autofit.workloads.lengths import elements
from autofit.workloads.tree import Batch, same, tensors

_COMPARED = 8
"""Number of batches of which the one is compared that gets the most padding."""


def padded(users: BatchSource, padding: BatchSource, size: int) -> tuple[Batch, Batch] | GateResult:
    """Returns a batch, and the same samples with more padding; or why there is none.

    Args:
        users: makes the user's batches.
        padding: makes the same batches with more padding.
        size: number of samples.
    """
    made = zip(*(source.typical(size, _COMPARED) for source in (users, users, padding)), strict=True)
    plain, again, more = max(made, key=lambda batches: elements(batches[2]) - elements(batches[0]))
    if elements(more) <= elements(plain):
        return GateResult(False, "could not be checked: no batch was padded further", checked=False)
    if not all(same(one, other) for one, other in zip(tensors(plain), tensors(again), strict=True)):
        return GateResult(False, "could not be checked: the same samples give other batches each time", checked=False)
    return plain, more
