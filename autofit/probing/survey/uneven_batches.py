"""Batches for gates: those whose samples differ most in what a loss may be a mean over."""

from time import perf_counter

from autofit.probing.survey.weighted_means import WeightedMean
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Cuttable
from autofit.workloads.lengths import elements
from autofit.workloads.useful_targets import may_differ, unevenness

_INSPECTED = 8
"""Number of batches that are inspected."""
_MOST_INSPECTED, _READING_S = 128, 5.0
"""Number of batches that are inspected for rare targets, and the seconds that reading them may take."""
_COMPARED = 3
"""Number of batches on which a mean over weighted targets is compared."""
_MOST_ELEMENTS = 2**24
"""Maximum number of elements of a batch whose labels are compared with those of other batches."""


def uneven(source: BatchSource, size: int) -> list[Cuttable]:
    """Returns one batch of a size: if possible, the one of a few whose samples differ most."""
    (first,) = source.cuttable(size, 1)
    differs = may_differ(first.batch, size) and elements(first.batch) <= _MOST_ELEMENTS
    if not source.resizable or not (source.varies or differs):
        return [first]
    return [max(source.cuttable(size, _INSPECTED), key=lambda batch: _unevenness(source, batch))]


def unevenly_weighted(source: BatchSource, size: int, mean: WeightedMean) -> list[Cuttable]:
    """Returns several batches whose targets a loss weights differently, those that differ most first.

    As many batches as can be read in `_READING_S` are inspected. There are fewer if few differ, and none if none does.
    """
    began = perf_counter()
    found = source.cuttable(size, _INSPECTED)
    took_s = max(perf_counter() - began, 1e-6)
    more = min(_MOST_INSPECTED, int(_INSPECTED * (1 + _READING_S / took_s)))
    if more > _INSPECTED:
        found = source.cuttable(size, more)
    score = {id(batch): mean.unevenness(batch.batch, size) for batch in found}
    differing = [batch for batch in found if score[id(batch)] > 0]
    return sorted(differing, key=lambda batch: score[id(batch)], reverse=True)[:_COMPARED]


def _unevenness(source: BatchSource, found: Cuttable) -> float:
    tokens = [source.tokens(part.batch) or 0 for part in found.cut([1] * found.samples)]
    return (max(tokens) - min(tokens)) / max(*tokens, 1) + unevenness(found.batch, found.samples)
