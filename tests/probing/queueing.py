"""A device that works off a queue, on the test's own clock, and steps for it."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autofit.core.plan import Plan
from autofit.devices.base import Counters
from autofit.devices.cpu import Cpu
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.fakes import FakeTime

BATCH = StepBatch.of([torch.ones(2, 1)])


class Queueing(Cpu):
    """The processor, as if its work were queued: what it is given it does after what it was given before.

    Args:
        clock: the host's.

    Attributes:
        log: what was launched, waited for and read, in order.
        live: bytes that it says are live.
        retries: events that its allocator says it had.
    """

    queues_work = True

    def __init__(self, clock: FakeTime) -> None:
        super().__init__()
        self.clock, self.log, self.live, self.retries = clock, list[str](), 0, 0
        self._idle_s = 0.0

    def launch(self, host_s: float, device_s: float) -> None:
        """Takes the host's time; the device's passes once it has done what is queued."""
        self.log.append("step")
        self.clock.advance(host_s)
        self._idle_s = max(self._idle_s, self.clock()) + device_s

    def synchronize(self) -> None:
        self.log.append("wait")
        self.clock.advance(max(self._idle_s - self.clock(), 0.0))

    def live_bytes(self) -> int:
        return self.live

    def counters(self) -> Counters:
        return Counters(retries=self.retries)


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Logs each time that a tensor's value is read, which on a real device waits for it."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self._log.append("read")
        return func(*args, **(kwargs or {}))


def step_on(device: Queueing, times_s: Iterable[float], host_s: float = 0.0, **changes: Any) -> TrainStep:
    """Returns a step that takes the device the given times, one after the other, and the host `host_s` to launch."""
    model, left = nn.Linear(1, 1), iter(times_s)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        device.launch(host_s, next(left))
        loss: torch.Tensor = model(batch).mean()
        return loss

    optimizer = changes.pop("optimizer", torch.optim.SGD(model.parameters(), lr=0.0))
    rule = changes.pop("loss", LossRule("l", loss, False, ""))
    return TrainStep(Plan(), Draft(model, rule, optimizer, torch.device("cpu"), **changes))


class Overflowing:
    """Puts an infinity into the gradient of the steps of these numbers, from 0 on."""

    def __init__(self, model: nn.Module, numbers: Iterable[int]) -> None:
        self._numbers, self._run = set(numbers), 0
        next(model.parameters()).register_hook(self)  # type: ignore[no-untyped-call]  # torch has no types here

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        self._run += 1
        return gradient * float("inf") if self._run - 1 in self._numbers else gradient


def forever(value: float) -> Iterator[float]:
    """Yields the value again and again."""
    while True:
        yield value
