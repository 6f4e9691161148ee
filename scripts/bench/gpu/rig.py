"""Rig: what every batch-size finder is given, and what is counted of it.

Every finder gets the same model, data and optimizer, and the same memory limit: on an accelerator the one that the
device enforces. On a host, where a dry run is made, a step over the limit raises torch's own text for a full host.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from autofit.core.plan import Plan
from autofit.devices.base import Device
from autofit.prepare import prepare
from autofit.probing.static_bytes import static_bytes
from autofit.strategies import members
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload

STEPS = 3
"""Steps of a trial: what Lightning's finder takes by default."""
HOST_TEXT = "DefaultCPUAllocator: can't allocate memory: the dry run's limit"


@dataclass
class Rig:
    """What a finder is given, and what is counted of it.

    Attributes:
        make: makes the workload afresh.
        device: where it trains.
        limit_bytes: the memory limit.
        steps: optimizer steps begun.
        ooms: out-of-memories provoked.
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
        """Returns the samples of the data set: no batch is larger."""
        return len(self.make().loader.dataset)

    def step_begins(self, size: int) -> None:
        """Counts a step; on a host raises when the size is over the limit.

        Raises:
            RuntimeError: it is.
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
        """Counts an out-of-memory inside, and lets it pass."""
        try:
            yield
        except RuntimeError as error:
            self.ooms += is_oom(error)
            raise

    def trial(self, size: int) -> None:
        """Trains `STEPS` steps at a size, everything made afresh, as a user's training function would.

        Raises:
            RuntimeError: out of memory, or whatever else the device says.
        """
        with self.counting():
            workload = self.make()
            workload.model.to(self.device.torch_device)
            loader = BatchSource.of(workload.loader).rebuild(size)
            with self._step(workload, size) as step:
                for _, batch in zip(range(STEPS), loader, strict=False):
                    self.step_begins(size)
                    step(batch)
                self.device.synchronize()
        self.ran.add(size)

    def clean(self) -> None:
        """Gives memory back after a trial; to be called when its handler was left."""
        gc.collect()
        self.device.release()

    def loss(self, workload: Workload) -> LossRule:
        """Returns how the loss is computed."""
        target = self.device.torch_device
        batch = map_tensors(BatchSource.of(workload.loader).typical(2, 1)[0], lambda t: t.to(target))
        return resolve_loss(workload.model, batch, loss_fn=workload.loss_fn)

    def _metered(self, size: int) -> int:
        workload = self.make()
        batch = BatchSource.of(workload.loader).worst(size)
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
    """Says whether a trial failed for want of memory."""
    return isinstance(error, torch.OutOfMemoryError) or HOST_TEXT in str(error)
