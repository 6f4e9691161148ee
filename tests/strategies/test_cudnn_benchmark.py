"""cuDNN's benchmark: where it is offered, that the flag is on in every part of a step, and that it is put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.cudnn_benchmark import CudnnBenchmark
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft

CUDNN: Any = torch.backends.cudnn
ON = Plan(values={"cudnn_benchmark": True})


def facts(model: nn.Module | None = None, **changes: Any) -> Facts:
    given = Facts(
        model=model or nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
        batch=torch.zeros(2, 3, 8, 8),
        optimizer=None,
        device_type="cuda",
        capabilities=frozenset({"cudnn"}),
        numerics="mixed",
        training=True,
        micro_batch_size=2,
        own_process=True,
    )
    return replace(given, **changes)


def reason(given: Facts) -> str:
    offer = CudnnBenchmark().offer(given)
    assert offer.knobs == ()
    (refused,) = offer.refused
    assert refused.name == "cudnn_benchmark"
    assert (refused.origin == "device") is ("cudnn" not in given.capabilities)
    return refused.reason


@contextmanager
def flags(**values: bool) -> Iterator[None]:
    before = {name: getattr(CUDNN, name) for name in values}
    try:
        for name, value in values.items():
            setattr(CUDNN, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(CUDNN, name, value)


@pytest.mark.parametrize(
    "model",
    [nn.Conv1d(3, 4, 3), nn.ConvTranspose3d(3, 4, 3), nn.Sequential(nn.Flatten(), nn.LazyConv2d(4, 3))],
    ids=str,
)
def test_each_value_has_a_process_of_its_own_for_a_model_with_any_convolution(model: nn.Module) -> None:
    offer = CudnnBenchmark().offer(facts(model))
    assert offer.refused == ()
    (knob,) = offer.knobs
    assert (knob.name, knob.values, knob.default) == ("cudnn_benchmark", (False, True), False)
    assert knob.of_process


def test_it_is_refused_with_the_reason() -> None:
    assert "no cuDNN" in reason(facts(capabilities=frozenset()))
    assert "keeps the arithmetic" in reason(facts(numerics="exact"))
    assert "no convolution among its modules" in reason(facts(nn.Linear(2, 2)))
    assert "again for each new shape" in reason(facts(varies=True))
    assert "cannot be cut" in reason(facts(resizable=False))
    with flags(benchmark=True):
        assert "benchmark is already on" in reason(facts())
    with flags(enabled=False):
        assert "enabled is off" in reason(facts())
    with flags(deterministic=True):
        assert "deterministic algorithms are on" in reason(facts())


def test_deterministic_algorithms_of_torch_are_kept_too() -> None:
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert "deterministic algorithms are on" in reason(facts())
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_in_the_users_own_process_the_command_is_named() -> None:
    found = reason(facts(own_process=False))
    assert "a process keeps the first kernel" in found
    assert "`autofit tune`" in found


class Watching(nn.Module):
    """Notes the flag in its forward and its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.seen: list[tuple[str, bool]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(("forward", CUDNN.benchmark))
        found: torch.Tensor = self.convolution(images)
        found.register_hook(lambda _: self.seen.append(("backward", CUDNN.benchmark)))  # type: ignore[no-untyped-call]  # torch has no types here
        return found


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("plan", [Plan(), Plan(values={"cudnn_benchmark": False}), ON], ids=str)
def test_the_flag_is_on_while_the_step_is_open_and_is_then_the_users(plan: Plan, own: bool) -> None:
    model = Watching()
    rule = LossRule("step_fn", lambda net, batch: net(batch).square().mean(), False, "")
    draft = Draft(model, rule, torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cpu"))
    with flags(benchmark=own):
        with prepare(plan, draft, members()) as step:
            step(torch.randn(2, 3, 8, 8))
        assert CUDNN.benchmark is own
    inside = own or plan == ON
    assert model.seen == [("forward", inside), ("backward", inside)]


def test_an_error_in_the_step_puts_the_flag_back() -> None:
    draft = Draft(
        nn.Linear(2, 2), LossRule("step_fn", lambda net, batch: net(batch), False, ""), None, torch.device("cpu")
    )
    with flags(benchmark=False):
        with pytest.raises(KeyError), CudnnBenchmark().apply(ON, draft):
            raise KeyError
        assert CUDNN.benchmark is False
        with pytest.raises(SpaceError, match="expected False or True"):
            CudnnBenchmark().acts(Plan(values={"cudnn_benchmark": "fast"}))
