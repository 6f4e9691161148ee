"""Batches for gates: those whose samples differ most in what a loss may be a mean over."""

from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Cuttable
from autofit.workloads.lengths import elements
from autofit.workloads.useful_targets import may_differ, unevenness

_INSPECTED = 8
"""Number of batches that are inspected."""
_MOST_ELEMENTS = 2**24
"""Maximum number of elements of a batch whose labels are compared with those of other batches."""


def uneven(source: BatchSource, size: int, count: int = 1) -> list[Cuttable]:
    """Returns batches of a size: if possible, the ones whose samples differ most, the first most of all.

    Args:
        source: makes the batches.
        size: number of samples.
        count: number of batches.
    """
    (first,) = source.cuttable(size, 1)
    differs = may_differ(first.batch, size) and elements(first.batch) <= _MOST_ELEMENTS
    if not source.resizable or not (source.varies or differs):
        return source.cuttable(size, count) if source.resizable else [first]
    found = source.cuttable(size, max(_INSPECTED, count))
    return sorted(found, key=lambda batch: _unevenness(source, batch), reverse=True)[:count]


def _unevenness(source: BatchSource, found: Cuttable) -> float:
    tokens = [source.tokens(part.batch) or 0 for part in found.cut([1] * found.samples)]
    return (max(tokens) - min(tokens)) / max(*tokens, 1) + unevenness(found.batch, found.samples)
