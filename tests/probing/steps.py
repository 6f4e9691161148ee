"""Steps and devices with a fault, for the tests of one probe."""

from typing import Any

import torch
from torch import nn

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.outcome import Outcome
from autofit.core.trial import Purpose
from autofit.devices.base import Counters, Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime, notes
from tests.probing import targets

CPU: Any = type(devices.choose("cpu"))
PLENTY = Options(memory_budget="1GiB", strategies=("batching",))


def evaluate(
    workload: Workload,
    purpose: Purpose = Purpose.PROBE,
    options: Options = PLENTY,
    device: Device | None = None,
    **plan: Any,
) -> Outcome:
    """Opens a bench, runs its baseline with the values of `plan`, and leaves it."""
    with LocalBench(workload, device or CPU(), options) as bench:
        return bench.evaluate(bench.briefing.space.baseline.replace(**plan), purpose)


class Scaled(nn.Module):
    """Gradients overflow in fp16 until the scaler's scale has come down."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.linear, self.limit = nn.Linear(8, 4), limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(x)
        if output.requires_grad:
            output.register_hook(lambda gradient: torch.where(gradient.abs() > self.limit, torch.inf, gradient))  # type: ignore[no-untyped-call]  # torch has no types here
        return output


class Caching(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device with a caching allocator: writes down when its cache is emptied among the steps."""

    is_host = False

    def __init__(self, lengths: list[int | str]) -> None:
        super().__init__()
        self.lengths, self.seen = lengths, Counters()

    def release(self) -> None:
        self.lengths.append("released")

    def counters(self) -> Counters:
        return self.seen


def hidden(device: Caching) -> None:
    device.seen = Counters(ooms=1)


class Seen:
    """A step function that writes down the batches it gets, each of which takes 0.1 s."""

    def __init__(self, clock: FakeTime) -> None:
        self.clock, self.batches = clock, notes()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.clock.advance(0.1)
        self.batches.append(tuple(batch["input_ids"].shape))
        return targets.token_mean(model, batch)
