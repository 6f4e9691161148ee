"""Typical batches, kept from one probe to the next: the blocks of a race would otherwise make them again each time."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from autofit.workloads.batches import BatchSource
from autofit.workloads.tree import Batch, map_tensors, tensors

MOST_BYTES = 2**30
"""Batches of other sizes are dropped when those kept are more than this, in host memory."""


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical batches of one size.

    Attributes:
        batches: to be copied before they are handed to the user's code, which may change them.
        fetch_s: seconds that making one of them took.
        tokens: mean of their useful tokens; None for data that is no sequence.
    """

    batches: Sequence[Batch]
    fetch_s: float
    tokens: float | None


class BatchStore:
    """A `BatchSource` that remembers the typical batches it gave last."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self._kept: OrderedDict[tuple[int, int], Typical] = OrderedDict()

    def typical(self, size: int, count: int) -> Typical:
        """Returns `count` batches of `size` samples, the same ones in every call."""
        found = self._kept.pop((size, count), None) or self._made(size, count)
        if _on_host(found):  # kept on the device they would count as memory of the next plan
            self._kept[size, count] = found
        while len(self._kept) > 1 and sum(map(_bytes_of, self._kept.values())) > MOST_BYTES:
            self._kept.popitem(last=False)
        return found

    def _made(self, size: int, count: int) -> Typical:
        began = perf_counter()
        batches = self.source.typical(size, count)
        seconds = (perf_counter() - began) / count
        counts = [tokens for batch in batches if (tokens := self.source.tokens(batch)) is not None]
        mean = sum(counts) / count if len(counts) == count else None
        return Typical(batches, seconds, mean)


def fresh(batch: Batch) -> Batch:
    """Returns a copy of `batch`, as a loader would give: a step may take entries out of it, or write to its tensors."""
    return map_tensors(batch, torch.clone)


def _on_host(typical: Typical) -> bool:
    return all(tensor.device.type == "cpu" for batch in typical.batches for tensor in tensors(batch))


def _bytes_of(typical: Typical) -> int:
    return sum(tensor.nbytes for batch in typical.batches for tensor in tensors(batch))
