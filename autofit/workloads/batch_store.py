"""Batches of optimizer steps: a cache of typical ones, and the loader that groups micro batches into steps."""

import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from autofit.core.errors import WorkloadError
from autofit.core.plan import Plan
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, counted
from autofit.workloads.tree import Batch, map_tensors, nbytes, tensors

MOST_BYTES = 2**30
"""Maximum size of the cached batches in host memory: above it, batches of other sizes are dropped."""
STEPS_KEPT, GROUPED_STEPS_KEPT, MOST_BATCHES = 4, 8, 64
"""Number of steps with different batches that a probe cycles through, so that one unusual batch does not decide; the
same if the samples of a batch are of similar length, so that batches differ more; and the maximum number of their micro
batches."""
COUNTED = 64
"""Number of samples whose useful tokens are counted if all batches of a size have the same shape."""


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical batches of one size, for steps of several micro batches.

    Attributes:
        batches: the micro batches. Copy them before the user's code runs on them, since it may change them.
        parts: number of micro batches per step.
        steps: number of steps with different batches.
        cycle: number of steps after which the batches repeat if they differ in shape. 1 if all have the same shape.
        fetch_s: seconds it took to make one micro batch.
        tokens: useful tokens of each micro batch. None for data that is not sequences.
    """

    batches: Sequence[Batch]
    parts: int
    steps: int
    cycle: int
    fetch_s: float
    tokens: Sequence[float] | None

    def of_step(self, number: int) -> list[Batch]:
        """Returns the micro batches of a step. Steps count from 0."""
        return [self.batches[at] for at in self.places(number)]

    def tokens_per_step(self, steps: int) -> float | None:
        """Returns the mean number of useful tokens of the first `steps` steps. None for data that is not sequences."""
        if self.tokens is None:
            return None
        return fmean(sum(self.tokens[at] for at in self.places(number)) for number in range(min(steps, self.cycle)))

    def places(self, step: int) -> list[int]:
        """Returns the positions of a step's micro batches in `batches`. Steps count from 0."""
        first = step % self.steps * self.parts
        return [at % len(self.batches) for at in range(first, first + self.parts)]


class BatchStore:
    """A `BatchSource` with a cache of the typical batches returned last."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self._kept: OrderedDict[tuple[int, int], Typical] = OrderedDict()
        self._per_sample: float | None = None
        self._draws = 0

    def fresh(self, size: int) -> Iterator[Batch]:
        """Yields random batches of `size` samples, endlessly: other ones in each call."""
        self._draws += 1
        return self.source.fresh(size, self._draws)

    def meets_new_shapes(self, typical: Typical, shapes_kept: int) -> bool:
        """Returns whether most micro batches of a training have a shape that is not among the `shapes_kept`.

        That is the number of shapes whose kernels the device's libraries keep.
        """
        distinct = self.source.distinct
        few = distinct is not None and distinct <= shapes_kept
        return self.source.varies and not few and shape_count(typical.batches) > shapes_kept

    def typical(self, size: int, parts: int) -> Typical:
        """Returns batches of `size` samples for steps of `parts` micro batches, the same in every call."""
        found = self._kept.pop((size, parts), None) or self._made(size, parts)
        # Batches cached on the device would count as memory of the next plan.
        if all(tensor.device.type == "cpu" for batch in found.batches for tensor in tensors(batch)):
            self._kept[size, parts] = found
        sizes = [sum(map(nbytes, each.batches)) for each in self._kept.values()]
        while len(sizes) > 1 and sum(sizes) > MOST_BYTES:
            self._kept.popitem(last=False)
            del sizes[0]
        return found

    def _made(self, size: int, parts: int) -> Typical:
        most = GROUPED_STEPS_KEPT if self.source.groups_lengths else STEPS_KEPT
        steps = max(min(most, MOST_BATCHES // parts), 1)
        count = min(steps * parts, MOST_BATCHES)
        self.source.choose(size, count)
        began = perf_counter()
        batches = self.source.typical(size, count)
        seconds = (perf_counter() - began) / count
        counts, varies = self._counted(batches), self.source.varies
        if counts is not None and not varies:
            if self._per_sample is None:  # the mean over a fixed set of samples: all sizes are compared on one figure
                user_size = self.source.user_batch_size
                usual = min(user_size, COUNTED) if self.source.resizable else user_size
                self._per_sample = fmean(self._counted(self.source.typical(usual, -(-COUNTED // usual))) or [0]) / usual
            counts = [size * self._per_sample] * count
        return Typical(batches, parts, steps, steps if varies else 1, seconds, counts)

    def _counted(self, batches: Sequence[Batch]) -> list[float] | None:
        counts = [self.source.tokens(batch) for batch in batches]
        return None if None in counts else [float(count) for count in counts if count is not None]


def fresh(batch: Batch) -> Batch:
    """Returns a copy of `batch`. A step may then remove entries or write to its tensors, as with a loader's batch."""
    return map_tensors(batch, torch.clone)


def unused(parts: Sequence[Batch], device_type: str) -> list[Batch]:
    """Returns micro batches that a step may change. Only those already on its device are copied."""
    return [fresh(part) if any(t.device.type == device_type for t in tensors(part)) else part for part in parts]


def shape_count(batches: Sequence[Batch]) -> float:
    """Returns the estimated number of shapes; infinity if batches differ in their number of tensors or dimensions.

    A dimension counts as many sizes as fit between the smallest and the largest one, in steps of their greatest common
    difference, so that lengths padded to a multiple count once per multiple. Dimensions that grow together, such as
    tokens and labels, count once. The estimate is low, since the extreme sizes are not among a few batches.
    """
    shapes = [[size for tensor in tensors(batch) for size in tensor.shape] for batch in batches]
    if len({len(shape) for shape in shapes}) > 1:
        return math.inf
    counts = dict[tuple[int, ...], int]()
    for column in zip(*shapes, strict=True):
        low, step = min(column), math.gcd(*(size - min(column) for size in column))
        ordered = sorted(set(column))  # dimensions that grow together have the same ranks
        counts[tuple(map(ordered.index, column))] = (max(column) - low) // step + 1 if step else 1
    return math.prod(counts.values())


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The micro batches of one optimizer step.

    Attributes:
        parts: the micro batches.
        weights: each part's share of the samples. They sum to 1, so that the step's gradient is the mean over samples
            even if the last part is smaller.
    """

    parts: Sequence[Batch]
    weights: Sequence[float]

    @classmethod
    def of(cls, parts: Sequence[Batch | Counted]) -> "StepBatch":
        """Weights `parts` by their number of samples, as counted when collated or else as given by their shapes."""
        known = [counted(part) for part in parts]
        total = sum(part.samples for part in known)
        return cls([part.batch for part in known], [part.samples / total for part in known])

    @classmethod
    def alike(cls, parts: Sequence[Batch]) -> "StepBatch":
        """Weights `parts` equally: each has the same number of samples."""
        return cls(parts, [1 / len(parts)] * len(parts))


@dataclass(slots=True)
class StepLoader:
    """Groups the micro batches of a loader into the batches of optimizer steps.

    With one micro batch per step, the loader's batches are passed on unchanged. A last incomplete group becomes a
    smaller step, like the last incomplete batch of a `DataLoader`, unless `drop_last` is set.

    Attributes:
        loader: yields micro batches.
        accumulation_steps: number of micro batches in a step.
        drop_last: whether an incomplete group is left out.
        micro_batch_size: samples in a micro batch of the plan; None if any number is expected.
    """

    loader: Any
    accumulation_steps: int
    drop_last: bool = False
    micro_batch_size: int | None = None
    _begun: bool = False
    _warned: bool = False

    @classmethod
    def of(cls, plan: Plan, loader: Any, *, drop_last: bool = False) -> "StepLoader":
        """Groups the micro batches of `loader` as a plan has them."""
        return cls(loader, plan.accumulation_steps, drop_last, plan.micro_batch_size)

    def __iter__(self) -> Iterator[Batch]:
        self._begun = True
        if self.accumulation_steps == 1:
            yield from self.loader
            return
        parts: list[Batch] = []
        for batch in self.loader:
            parts.append(batch)
            if len(parts) == self.accumulation_steps:
                yield StepBatch.of(parts)
                parts = []
        if parts and not self.drop_last:
            yield StepBatch.of(parts)

    def __len__(self) -> int:
        steps = len(self.loader) / self.accumulation_steps
        return math.floor(steps) if self.drop_last else math.ceil(steps)

    def whole(self, batch: Batch) -> StepBatch:
        """Returns a batch as a whole step. Warns once if the plan has other ones.

        Samples are counted by shapes, which may be wrong (a batch of graphs has one row per node). So they are compared
        with the plan only if none of this loader's batches was taken.
        """
        if not self._warned and (objection := self._objection(batch)):
            self._warned = True
            warnings.warn(f"{objection} Use the batches of step.loader.", stacklevel=3)
        return StepBatch((batch,), (1.0,))

    def _objection(self, batch: Batch) -> str:
        """Returns what is wrong with a batch as a whole step, or ""."""
        if self.micro_batch_size is None:
            return ""
        if self.accumulation_steps > 1:
            return (
                f"step() got a plain batch and updates the weights after it; expected {self.accumulation_steps} micro "
                f"batches of {self.micro_batch_size} samples for each update, as the plan has."
            )
        with suppress(WorkloadError):  # its samples cannot be counted
            if not self._begun and (size := counted(batch).samples) > self.micro_batch_size:
                return (
                    f"step() got a batch of {size} samples, which may not fit in memory; expected at most "
                    f"{self.micro_batch_size}, for which the plan was proven."
                )
        return ""
