"""Changes that are applied from outside, and the peaks that are measured with them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import sleep

import pytest
import torch
from torch import nn

from autofit.devices.cpu import Cpu
from autofit.doctor.what_if import Change, WhatIf, frozen, graphless, narrowed, only_used, replaced, without_graph
from autofit.search.race import MIN_ROUNDS

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
    nothing = bench.peak_bytes(Change("nothing", opened=lambda: nullcontext(lambda: None)))
    assert nothing == sum(parameter.numel() * 4 for parameter in model.parameters())


def test_a_step_that_fails_with_a_change_has_no_peak(model: nn.Sequential) -> None:
    bench = what_if(model)

    def fail() -> None:
        raise RuntimeError("no")

    assert bench.peak_bytes(Change("fails", opened=lambda: nullcontext(fail))) is None
    assert bench.saved_bytes(Change("fails", opened=lambda: nullcontext(fail))) is None


def test_a_change_that_takes_half_of_the_time_is_twice_as_fast(model: nn.Sequential) -> None:
    naps = [0.004, 0.004]

    @contextmanager
    def without_a_nap() -> Iterator[None]:
        nap = naps.pop()
        yield
        naps.append(nap)

    bench = WhatIf(lambda: sleep(sum(naps)), Cpu(), list)
    ratio = bench.speed(Change("one nap", without_a_nap))
    assert ratio is not None
    assert ratio.low < 2 < ratio.high or ratio.value == pytest.approx(2, rel=0.1)
    assert ratio.pairs >= MIN_ROUNDS
    slower = bench.speed(Change("a longer nap", opened=lambda: nullcontext(lambda: sleep(0.016))))
    assert slower is not None
    assert slower.high < 1


def test_the_speed_of_a_change_within_the_noise_is_not_told() -> None:
    bench = WhatIf(lambda: sleep(0.02), Cpu(), list)
    assert bench.speed(Change("nothing", nullcontext)) is None


def test_a_change_with_which_a_step_fails_has_no_speed() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    bench = WhatIf(lambda: sleep(0.001), Cpu(), list)
    assert bench.speed(Change("fails", opened=lambda: nullcontext(fail))) is None


def test_after_its_time_nothing_is_raced() -> None:
    calls = list[int]()
    bench = WhatIf(lambda: calls.append(1), Cpu(), list, until_s=0.0)
    assert bench.over
    assert bench.speed(Change("nothing")) is None
    assert calls == []


def test_a_backward_pass_may_leave_gradients_out(model: nn.Sequential) -> None:
    data = torch.randn(2, WIDTH)

    def passes() -> list[torch.Tensor | None]:
        model.zero_grad()
        for _ in range(2):
            torch.autograd.backward(model(data).square().mean())
        return [parameter.grad for parameter in model.parameters()]

    wanted = passes()
    with only_used({1: list(model[0].parameters())}, model.parameters()):
        found = passes()
    for each, other, factor in zip(found, wanted, (0.5, 0.5, 1, 1), strict=True):
        assert each is not None
        assert other is not None
        torch.testing.assert_close(each, factor * other)
    assert torch.autograd.backward.__name__ == "backward"


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_pass_may_make_no_graph() -> None:
    x = torch.ones(2, requires_grad=True)

    def slopes() -> list[bool]:
        y = x.pow(3).sum()
        first = [torch.autograd.grad(y, x, create_graph=True)[0] for _ in range(2)]
        y.backward(create_graph=True)  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return [each.requires_grad for each in (*first, x.grad)]

    with graphless({2, 3}, True):
        assert slopes() == [True, False, False]
    x.grad = None
    with graphless({1}, False), pytest.raises(RuntimeError, match="second time"):
        slopes()
    x.grad = None
    assert slopes() == [True] * 3


def test_constants_are_float32_while_steps_run_and_as_before_afterwards() -> None:
    constant = torch.ones(4, dtype=torch.float64)
    address = constant.data_ptr()
    with narrowed([constant], lambda: None) as run:
        run()
        assert constant.dtype is torch.float32
    assert (constant.dtype, constant.data_ptr()) == (torch.float64, address)
