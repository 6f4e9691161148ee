"""Rig: the input of every batch-size finder, and the counters of its search.

Every finder gets the same model, data and optimizer, and the same memory limit. On an accelerator the device enforces
it. In a dry run on a host, a step over the limit raises an error with torch's text for a full host.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from autofit.core.plan import Plan
from autofit.devices.base import Device
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, TrainStep, static_bytes
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload

STEPS = 3
"""Steps of a trial, the default of Lightning's finder."""
HOST_TEXT = "DefaultCPUAllocator: can't allocate memory: the dry run's limit"


@dataclass
class Rig:
    """Input of a finder, and counters of its search.

    Attributes:
        make: makes a new workload.
        device: device that it trains on.
        limit_bytes: the memory limit.
        steps: optimizer steps begun.
        ooms: out-of-memory errors caused.
        ran: sizes at which a whole trial ran.
    """

    make: Callable[[], Workload]
    device: Device
    limit_bytes: int
    steps: int = 0
    ooms: int = 0
    ran: set[int] = field(default_factory=set)
    _peaks: dict[int, int] = field(default_factory=dict)

    def most(self) -> int:
        """Returns the size of the data set, the largest possible batch."""
        return len(self.make().loader.dataset)

    def step_begins(self, size: int) -> None:
        """Counts a step.

        Raises:
            RuntimeError: on a host, the size is over the limit.
        """
        self.steps += 1
        if not self.device.is_host:
            return
        if size not in self._peaks:
            self._peaks[size] = self._metered(size)
        if self._peaks[size] > self.limit_bytes:
            raise RuntimeError(HOST_TEXT)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts an out-of-memory error and raises it again."""
        try:
            yield
        except RuntimeError as error:
            self.ooms += is_oom(error)
            raise

    def trial(self, size: int) -> None:
        """Trains `STEPS` steps at a size with a new workload, as a user's training function would.

        Raises:
            RuntimeError: out of memory, or another error of the device.
        """
        with self.counting():
            workload = self.make()
            workload.model.to(self.device.torch_device)
            loader = source_of(workload.loader).rebuild(size)
            with self._step(workload, size) as step:
                for _, batch in zip(range(STEPS), loader, strict=False):
                    self.step_begins(size)
                    step(batch)
                self.device.synchronize()
        self.ran.add(size)

    def clean(self) -> None:
        """Releases memory after a trial. Call it after the exception handler."""
        gc.collect()
        self.device.release()

    def loss(self, workload: Workload) -> LossRule:
        """Returns the rule that computes the loss."""
        target = self.device.torch_device
        batch = map_tensors(source_of(workload.loader).typical(2, 1)[0], lambda t: t.to(target))
        return resolve_loss(workload.model, batch, loss_fn=workload.loss_fn)

    def _metered(self, size: int) -> int:
        workload = self.make()
        batch = source_of(workload.loader).worst(size)
        with self._step(workload, size) as step:
            step(batch)
            with self.device.meter(lambda: static_bytes(step)) as reading:
                step(batch)
        assert reading.memory is not None, "the meter has filled its reading"
        return reading.memory.judged_bytes

    def _step(self, workload: Workload, size: int) -> TrainStep:
        draft = Draft.of(workload, self.loss(workload), self.device.torch_device)
        return prepare(Plan(values={"micro_batch_size": size}), draft, members())


def is_oom(error: RuntimeError) -> bool:
    """Returns whether a trial failed with an out-of-memory error."""
    return isinstance(error, torch.OutOfMemoryError) or HOST_TEXT in str(error)
