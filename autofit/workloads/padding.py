"""Padding: the share of the elements of batches that only fill them up to the longest sample."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autofit.workloads.lengths import elements
from autofit.workloads.tree import Batch

SAMPLES = 512
"""Maximum number of samples in the batches that are compared, unless one batch has more."""


def padding_share(make: Callable[[list[Any]], Batch], lists: Iterable[Sequence[Any]]) -> float:
    """Returns the share of padding, from 0 to 1: the elements that batches have beyond those of their samples alone.

    It is measured by collating each sample alone, so it needs no mask and holds for any collate function. Elements that
    a sample alone has too, such as padding to a fixed length, are not counted.

    Args:
        make: keys -> batch.
        lists: the keys of each batch.
    """
    whole = alone = 0
    for keys in lists:
        whole += elements(make(list(keys)))
        alone += sum(elements(make([key])) for key in keys)
    return max(1 - alone / whole, 0.0) if whole else 0.0
