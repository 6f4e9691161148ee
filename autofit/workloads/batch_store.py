"""Typical batches, kept from one probe to the next: the blocks of a race would otherwise make them again each time."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from time import perf_counter

import torch

from autofit.workloads.batches import BatchSource
from autofit.workloads.lengths import elements
from autofit.workloads.tree import Batch, map_tensors, nbytes, tensors

MOST_BYTES = 2**30
"""Batches of other sizes are dropped when the batches in host memory exceed this many bytes."""
STEPS_KEPT, MOST_BATCHES = 4, 64
"""A probe cycles through this many steps of different batches, so that one odd batch does not decide. Together they
hold at most `MOST_BATCHES` micro batches."""
COUNTED = 64
"""The useful tokens of this many samples are counted where every batch of a size has the same shape."""


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical batches of one size, for steps of several micro batches.

    Attributes:
        batches: to be copied before they are handed to the user's code, which may change them.
        parts: micro batches of a step.
        cycle: steps after which the same batches come again, where they differ in shape; 1 where all are alike.
        fetch_s: seconds that making one of them took.
        tokens: useful tokens of each batch; None for data that is not sequences.
    """

    batches: Sequence[Batch]
    parts: int
    cycle: int
    fetch_s: float
    tokens: Sequence[float] | None

    def of_step(self, number: int) -> list[Batch]:
        """Returns the micro batches of a step; step 0 has the first."""
        return [self.batches[at] for at in self._places(number)]

    def tokens_per_step(self, steps: int) -> float | None:
        """Returns the mean of the useful tokens of the first `steps` steps; None for data that is not sequences."""
        if self.tokens is None:
            return None
        return fmean(sum(self.tokens[at] for at in self._places(number)) for number in range(min(steps, self.cycle)))

    def by_size(self, *, rising: bool) -> "Typical":
        """Returns the micro batches of all steps in the order of their elements: together they are the same work."""
        places = [at for step in range(_steps_kept(self.parts)) for at in self._places(step)]
        places.sort(key=lambda at: elements(self.batches[at]), reverse=not rising)
        tokens = None if self.tokens is None else [self.tokens[at] for at in places]
        return replace(self, batches=[self.batches[at] for at in places], tokens=tokens)

    def _places(self, step: int) -> list[int]:
        first = step % _steps_kept(self.parts) * self.parts
        return [at % len(self.batches) for at in range(first, first + self.parts)]


class BatchStore:
    """A `BatchSource` that remembers the typical batches it gave last."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self._kept: OrderedDict[tuple[int, int], Typical] = OrderedDict()
        self._per_sample: float | None = None

    def typical(self, size: int, parts: int) -> Typical:
        """Returns batches of `size` samples for steps of `parts` of them, the same ones in every call."""
        found = self._kept.pop((size, parts), None) or self._made(size, parts)
        if _on_host(found):  # kept on the device they would count as memory of the next plan
            self._kept[size, parts] = found
        while len(self._kept) > 1 and sum(map(_bytes_of, self._kept.values())) > MOST_BYTES:
            self._kept.popitem(last=False)
        return found

    def _made(self, size: int, parts: int) -> Typical:
        steps = _steps_kept(parts)
        count = min(steps * parts, MOST_BATCHES)
        self.source.choose(size, count)
        began = perf_counter()
        batches = self.source.typical(size, count)
        seconds = (perf_counter() - began) / count
        counts = self._counted(batches)
        varies = self.source.varies
        if counts is not None and not varies:
            counts = [size * self._tokens_per_sample()] * count
        return Typical(batches, parts, steps if varies else 1, seconds, counts)

    def _tokens_per_sample(self) -> float:
        """Returns the mean of some samples: which ones a size happens to get must not make it look fast or slow."""
        if self._per_sample is None:
            own = self.source.user_batch_size
            size = min(own, COUNTED) if self.source.resizable else own
            batches = self.source.typical(size, -(-COUNTED // size))
            self._per_sample = fmean(self._counted(batches) or [0]) / size
        return self._per_sample

    def _counted(self, batches: Sequence[Batch]) -> list[float] | None:
        counts = [self.source.tokens(batch) for batch in batches]
        return None if None in counts else [float(count) for count in counts if count is not None]


def fresh(batch: Batch) -> Batch:
    """Returns a copy of `batch`, as a loader would give: a step may take entries out of it, or write to its tensors."""
    return map_tensors(batch, torch.clone)


def _steps_kept(parts: int) -> int:
    """Returns how many different steps of this many micro batches there are."""
    return max(min(STEPS_KEPT, MOST_BATCHES // parts), 1)


def _on_host(typical: Typical) -> bool:
    return all(tensor.device.type == "cpu" for batch in typical.batches for tensor in tensors(batch))


def _bytes_of(typical: Typical) -> int:
    return sum(map(nbytes, typical.batches))


def unused(parts: Sequence[Batch], device_type: str) -> list[Batch]:
    """Returns micro batches that a step may change: copies, where bringing them to its device does not make any."""
    return [fresh(part) if any(t.device.type == device_type for t in tensors(part)) else part for part in parts]
