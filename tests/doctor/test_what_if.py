"""Changes that are applied from outside, and the peaks that are measured with them."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from autofit.devices.cpu import Cpu
from autofit.doctor.what_if import Change, WhatIf, frozen, replaced, without_graph

WIDTH = 512


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def test_only_the_wanted_call_of_a_module_makes_no_graph(model: nn.Sequential) -> None:
    data = torch.randn(2, WIDTH)
    with without_graph([(model, 1)]):
        graphs = [model(data).requires_grad for _ in range(3)]
    assert graphs == [True, False, True]
    assert torch.is_grad_enabled()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_gradients_are_enabled_again_after_a_call_that_fails(model: nn.Sequential) -> None:
    with without_graph([(model, 0)]), pytest.raises(RuntimeError):
        model(torch.randn(2, 3))
    assert torch.is_grad_enabled()


def test_gradients_are_enabled_again_after_an_interruption(model: nn.Sequential) -> None:
    def interrupted(given: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    vars(model[1])["forward"] = interrupted
    with pytest.raises(KeyboardInterrupt), without_graph([(model, 0)]):
        model(torch.randn(2, WIDTH))
    assert torch.is_grad_enabled()


def test_frozen_parameters_get_no_gradient_and_are_trained_afterwards(model: nn.Sequential) -> None:
    first = list(model[0].parameters())
    model(torch.randn(2, WIDTH)).sum().backward()
    with frozen(first):
        assert [parameter.grad for parameter in first] == [None, None]
        model(torch.randn(2, WIDTH)).sum().backward()
    assert [parameter.grad for parameter in first] == [None, None]
    assert all(parameter.requires_grad for parameter in first)


def test_a_forward_method_is_replaced_for_a_while(model: nn.Sequential) -> None:
    with replaced({model[1]: torch.zeros_like}):
        assert not model[1](torch.ones(3)).any()
    assert model[1](torch.ones(3)).all()
    assert "forward" not in vars(model[1])


def test_a_forward_method_of_one_module_alone_is_put_back(model: nn.Sequential) -> None:
    vars(model[1])["forward"] = own = torch.ones_like  # as libraries do that patch a model
    with replaced({model[1]: torch.zeros_like}):
        assert not model[1](torch.ones(3)).any()
    assert vars(model[1])["forward"] is own


def what_if(model: nn.Sequential, **more: object) -> WhatIf:
    data = torch.randn(256, WIDTH)

    def run() -> None:
        model(data).mean().backward()
        model.zero_grad()

    def held() -> Iterator[torch.Tensor]:
        return iter(model.parameters())

    return WhatIf(run, Cpu(), held, **more)  # type: ignore[arg-type]


def test_the_peak_with_a_change_is_that_of_steps_with_it(model: nn.Sequential) -> None:
    bench = what_if(model)
    whole, half = bench.peak_bytes(), bench.peak_bytes(Change("half", lambda: frozen(model[0].parameters())))
    assert whole is not None
    assert half is not None
    weights = WIDTH * WIDTH * 4
    assert whole - half >= weights / 2
    assert bench.saved_bytes(Change("half", lambda: frozen(model[0].parameters()))) == whole - half


def test_a_change_may_run_another_step(model: nn.Sequential) -> None:
    bench = what_if(model)
    nothing = bench.peak_bytes(Change("nothing", run=lambda: None))
    assert nothing == sum(parameter.numel() * 4 for parameter in model.parameters())


def test_a_step_that_fails_with_a_change_has_no_peak(model: nn.Sequential) -> None:
    bench = what_if(model)

    def fail() -> None:
        raise RuntimeError("no")

    assert bench.peak_bytes(Change("fails", run=fail)) is None
    assert bench.saved_bytes(Change("fails", run=fail)) is None
