"""Time in forward passes, backward passes and updates, by hooks, with a clock of the test's own."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.integrations.work_clock import WorkClock
from tests.fakes import FakeTime

FORWARD_S, BACKWARD_S, UPDATE_S, AROUND_S = 1.0, 10.0, 100.0, 1000.0


class Backward(torch.autograd.Function):
    """Takes time when gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, time: FakeTime) -> torch.Tensor:
        ctx.time = time
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.time.advance(BACKWARD_S)
        return gradient, None


class Model(nn.Module):
    """Takes time in each pass. Returns its loss, or only its output."""

    def __init__(self, time: FakeTime, kind: str) -> None:
        super().__init__()
        self.line, self.time, self.kind = nn.Linear(2, 1), time, kind

    def forward(self, x: torch.Tensor) -> Any:
        self.time.advance(FORWARD_S)
        out = Backward.apply(self.line(x), self.time)  # type: ignore[no-untyped-call]
        return {"loss": {"loss": out.mean(), "out": out}, "mapping": {"out": out}, "tuple": (out,)}.get(self.kind, out)


class Update(torch.optim.Optimizer):
    """Takes time in each step, and updates nothing."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.parameters(), {})
        self.time = model.time

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.time.advance(UPDATE_S)


def loss_of(output: Any) -> torch.Tensor:
    values = list(output.values()) if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
    loss: torch.Tensor = values[0].mean()
    return loss


def trained(kind: str, micro_batches: int = 1, *, clips: bool = False) -> float:
    """Returns the seconds of work that a step had."""
    time = FakeTime()
    clock, model = WorkClock(time), Model(time, kind)
    optimizer = Update(model)
    clock.follow_passes(model)
    clock.follow_updates(optimizer, began=clips)
    for _ in range(micro_batches):
        time.advance(AROUND_S)
        loss = loss_of(model(torch.ones(3, 2)))
        if kind == "loss":
            time.advance(AROUND_S)  # else the loss is computed here, which is work
        loss.backward()  # type: ignore[no-untyped-call]
        if not clips:
            time.advance(AROUND_S)
    optimizer.step()
    time.advance(AROUND_S)
    with torch.no_grad():
        model(torch.ones(3, 2))
    return clock.taken()


@pytest.mark.parametrize("kind", ["loss", "mapping", "tuple", "tensor"])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("clips", [False, True])
def test_only_passes_and_updates_are_work(kind: str, micro_batches: int, clips: bool) -> None:
    assert trained(kind, micro_batches, clips=clips) == micro_batches * (FORWARD_S + BACKWARD_S) + UPDATE_S


def test_clipping_before_the_update_is_work() -> None:
    time = FakeTime()
    clock, model = WorkClock(time), Model(time, "loss")
    optimizer = Update(model)
    clock.follow_passes(model)
    clock.follow_updates(optimizer, began=True)
    loss_of(model(torch.ones(3, 2))).backward()  # type: ignore[no-untyped-call]
    time.advance(5.0)
    optimizer.step()
    assert clock.taken() == FORWARD_S + BACKWARD_S + 5.0 + UPDATE_S


def test_nothing_is_followed_after_a_stop() -> None:
    model = Model(FakeTime(), "loss")
    clock, optimizer = WorkClock(model.time), Update(model)
    clock.follow_passes(model)
    clock.follow_updates(optimizer)
    clock.stop()
    loss_of(model(torch.ones(3, 2))).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert clock.taken() == 0.0


def test_the_last_beginning_counts() -> None:
    time = FakeTime()
    clock = WorkClock(time)
    clock.end()
    clock.begin()
    time.advance(1.0)
    clock.begin()
    time.advance(2.0)
    clock.end()
    time.advance(4.0)
    clock.end()
    assert clock.taken() == 2.0
