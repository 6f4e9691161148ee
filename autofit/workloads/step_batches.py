"""The batches of optimizer steps: micro batches that are trained together, and the loader that groups them."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from autofit.core.errors import WorkloadError
from autofit.core.plan import Plan
from autofit.workloads.counted_batches import Counted, counted
from autofit.workloads.tree import Batch


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
