"""Recompute: the second run of a block changes nothing that the first one has changed already."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.strategies.repeated_blocks import (
    CASES,
    FlatNorm,
    Gpt,
    ResNet,
    applied,
    codebooks,
    fail,
    mean_loss,
    tokens,
    trained,
)


def test_the_recomputation_leaves_every_buffer_bit_identical() -> None:
    model = ResNet()
    batch = CASES["resnet"][1]
    buffers = []
    for count in (0, 5):
        torch.manual_seed(1)
        trial = copy.deepcopy(model)
        with applied(trial, count):
            trial(batch).square().mean().backward()
        buffers.append(dict(trial.named_buffers()))
    assert sum(name.endswith("num_batches_tracked") for name in buffers[0]) == 10
    assert all(torch.equal(buffers[1][name], value) for name, value in buffers[0].items())
    assert int(buffers[1]["layer1.0.bn1.num_batches_tracked"]) == 1


def test_a_norm_has_its_momentum_again_after_the_step_and_after_a_failed_recomputation() -> None:
    model = ResNet()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    tracked = [norm.num_batches_tracked for norm in norms]
    with applied(model, 5):
        loss = model(CASES["resnet"][1]).sum()
        model.get_submodule("layer1.0.conv2").register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="injected"):
            loss.backward()
        assert all(norm.momentum == 0.1 for norm in norms)
    assert all(norm.num_batches_tracked is before for norm, before in zip(norms, tracked, strict=True))


@pytest.mark.filterwarnings("ignore:the buffer last")
def test_a_buffer_that_begins_to_change_later_is_updated_once_with_a_warning() -> None:
    torch.manual_seed(0)
    model, batch = codebooks(late=True), CASES["codebook"][1]
    twin = copy.deepcopy(model)
    with applied(model, 3):
        model(batch).sum().backward()
        with pytest.warns(UserWarning, match=r"the buffer mean of a Codebook .* changed for the first time"):
            loss = model(batch).sum()
        loss.backward()
        for trial in (twin, twin, model, twin):
            trial.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                trial(batch).sum().backward()
    for name, buffer in twin.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)
    for name, weight in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, weight.grad)


@pytest.mark.fault("F47")
def test_dropout_draws_the_same_mask_again() -> None:
    model, batch = Gpt(p=0.5), tokens()
    plain, checkpointed = trained(model, batch, 0, steps=1), trained(model, batch, 4, steps=1)
    other = trained_with_another_seed(model, batch)
    assert not torch.allclose(plain["head.weight.grad"], other)
    torch.testing.assert_close(checkpointed["blocks.0.up.weight.grad"], plain["blocks.0.up.weight.grad"])


def trained_with_another_seed(model: Gpt, batch: Tensor) -> Tensor:
    model = copy.deepcopy(model)
    torch.manual_seed(4)
    model(batch).square().mean().backward()
    assert model.head.weight.grad is not None
    return model.head.weight.grad


def test_a_norm_with_its_own_forward_may_be_frozen_at_first() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = FlatNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(self.norm(x)))

    model, batch = nn.Sequential(Tokens(), Tokens()), torch.linspace(-1, 1, 96).reshape(3, 4, 8)
    twin = copy.deepcopy(model)
    with applied(model, 2):
        for trial in (model, twin):
            trial.get_submodule("0.norm").eval()
            trial(batch).sum().backward()
            trial.train()
            trial(batch).sum().backward()
    for name, buffer in twin.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name


@pytest.mark.parametrize("name", ["codebook", "spectral norm", "resnet"])
def test_second_backward_over_a_kept_graph_is_exact_too(name: str) -> None:
    make, batch = CASES[name]
    gradients = []
    model = make()
    for count in (0, 3):
        trial = copy.deepcopy(model)
        with applied(trial, count):
            loss = mean_loss(trial, batch)
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch has no types here
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        gradients.append([weight.grad for weight in trial.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_an_input_changed_in_place_is_an_error_and_not_a_wrong_gradient() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 4), nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            x += 1.0
            output: Tensor = self.act(self.linear(x))
            return output

    model = nn.Sequential(nn.Linear(4, 4), *[InPlace() for _ in range(2)])
    with applied(model, 2):
        loss = model(torch.ones(2, 4)).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_runs_on_fake_tensors() -> None:
    for name in ("resnet", "codebook", "own norm"):
        make, batch = CASES[name]
        with FakeTensorMode():
            model = make()
            with applied(model, 3):
                model(torch.empty(batch.shape)).sum().backward()
            assert all(weight.grad is not None for weight in model.parameters())


def test_only_buffers_that_change_are_copied_after_the_first_call() -> None:
    model = codebooks()
    with applied(model, 3):
        model(CASES["codebook"][1])
        recompute = vars(model.get_submodule("0"))["forward"].recompute
        assert {recompute.buffers[position][1] for position in recompute.changing} == {"mean", "last"}
