"""The two arms of a comparison: blocks of the prepared step, and blocks of a trainer under the exported plan."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from time import perf_counter, process_time
from typing import Any

from autofit.fit import Fit
from autofit.workloads.step import TrainStep
from scripts.bench.trainers.judging import BlockTimes

WARM_UP_STEPS = 5
"""First steps of each block, which are not timed: those that the integrations leave out too."""
Instant = tuple[float, float]
"""Wall clock and CPU time, in seconds."""


class Trained(ABC):
    """A model with its data, as a trainer trains it."""

    name: str

    @abstractmethod
    def tune(self, seconds: float) -> Fit:
        """Tunes within the trainer, as the integration does."""

    @abstractmethod
    def prepared(self, fit: Fit) -> TrainStep:
        """Returns the measured step of the plan over the same data, with another copy of the model."""

    @abstractmethod
    def block(self, fit: Fit, steps: int) -> tuple[BlockTimes, str]:
        """Trains with the trainer under the plan. Returns its times, and what the integration says of them."""


class Prepared:
    """Blocks of the prepared step, which continues with its loader from block to block."""

    def __init__(self, step: TrainStep) -> None:
        self._step, self._batches = step, _again_and_again(step.loader)

    def block(self, steps: int) -> BlockTimes:
        """Runs some steps after a warm-up, and times them."""
        for _ in range(WARM_UP_STEPS):
            self._step(next(self._batches))
        alone_s, began = 0.0, instant()
        for _ in range(steps):
            batch = next(self._batches)
            before = perf_counter()
            self._step(batch)
            alone_s += perf_counter() - before
        return timed(began, instant(), steps, alone_s / steps)


class StepEnds(list[Instant]):
    """When each step of a trainer ended."""

    def note(self) -> None:
        """Reads the clocks."""
        self.append(instant())

    def block(self, steps: int, overhead_s: float | None) -> BlockTimes:
        """Returns the times of the last steps; `overhead_s` is the reported overhead of each."""
        first, last = self[-1 - steps], self[-1]
        whole_s = (last[0] - first[0]) / steps
        return timed(first, last, steps, None if overhead_s is None else whole_s - overhead_s)


def instant() -> Instant:
    """Returns the time."""
    return perf_counter(), process_time()


def timed(began: Instant, ended: Instant, steps: int, work_s: float | None) -> BlockTimes:
    """Returns the block between two instants."""
    wall_s, cpu_s = ((after - before) / steps for before, after in zip(began, ended, strict=True))
    return BlockTimes(wall_s, cpu_s, work_s)


def _again_and_again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
