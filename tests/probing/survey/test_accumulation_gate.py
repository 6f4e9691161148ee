"""The gates see what a step does in training alone, and chance in training does not lock the batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.cpu import needs_bf16
from tests.probing.survey.comparing import accumulated, rounded
from tests.probing.survey.test_gates import BF16, build, mean, vectors


class Layer(nn.Module):
    """Puts vectors through a layer that is made for sequences, or through a function; only in training is it random."""

    def __init__(self, layer: nn.Module | None = None, function: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.layer, self.outward, self.function = nn.Linear(8, 16), layer, nn.Linear(16, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x).view(-1, 2, 8)
        if isinstance(self.layer, nn.MultiheadAttention):
            x = self.layer(x, x, x)[0]
        elif isinstance(self.layer, nn.LSTM):
            x = self.layer(x)[0]
        elif self.layer is not None:
            x = self.layer(x)
        if self.function is not None and self.training:
            x = self.function(x)
        output: torch.Tensor = self.outward(x.flatten(1))
        return output


def dropped_path(x: torch.Tensor) -> torch.Tensor:
    return x + x.new_empty(len(x), 1, 1).bernoulli_(0.5) * x.square()


def shuffled_rows(x: torch.Tensor) -> torch.Tensor:
    """One step of all samples after the other, as in recurrent networks."""
    rows = x.transpose(0, 1).flatten(0, 1)
    return (rows * rows.new_empty(rows.shape).bernoulli_(0.5)).view(2, -1, 8).transpose(0, 1)


def masked_by_numpy(x: torch.Tensor) -> torch.Tensor:
    """As `transformers` masks the features of speech: a span of its own for each sample, drawn by NumPy."""
    return x * torch.from_numpy(np.random.rand(*x.shape) > 0.3)


def mixed(x: torch.Tensor) -> torch.Tensor:
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))]


CHANCE: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "recurrent": (lambda: Layer(nn.LSTM(8, 8, 2, batch_first=True, dropout=0.5)), False),
    "attention": (lambda: Layer(nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)), False),
    "rrelu": (lambda: Layer(nn.RReLU()), False),
    "alpha dropout": (lambda: Layer(nn.FeatureAlphaDropout(0.5)), False),
    "functional dropout": (lambda: Layer(function=lambda x: F.dropout(x, 0.5)), False),
    "attention function": (
        lambda: Layer(function=lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
        False,
    ),
    "attention function by position": (
        lambda: Layer(function=lambda x: F.scaled_dot_product_attention(x, x, x, None, 0.5, False)),
        False,
    ),
    "drop path": (lambda: Layer(function=dropped_path), False),
    "noise": (lambda: Layer(function=lambda x: x + torch.randn_like(x)), False),
    "noise for rows that are not samples": (
        lambda: Layer(function=shuffled_rows),
        True,
    ),
    "numpy's mask": (lambda: Layer(function=masked_by_numpy), True),
    "mixup": (lambda: Layer(function=mixed), True),
}


@pytest.mark.parametrize("name", CHANCE)
def test_chance_in_training_is_shared_or_left_out_and_then_said(name: str) -> None:
    make, evaluated = CHANCE[name]
    verdict = accumulated(build(make(), mean), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert verdict.evaluated is evaluated


def detected(model: nn.Module, batch: Any) -> torch.Tensor:
    losses: dict[str, torch.Tensor] = model(*batch)
    return torch.stack(list(losses.values())).sum()


class Detector(nn.Module):
    """Losses in training, detections in evaluation, as torchvision's detectors have them."""

    def __init__(self, layer: nn.Module | None = None, picked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), layer or nn.Identity(), nn.ReLU(), nn.Linear(16, 4))
        self.picked = picked

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        output = self.body(x)
        if not self.training:
            return [output]
        if self.picked:  # as candidates are: some of all in the batch
            found = torch.randperm(4 * len(x))[: 2 * len(x)] // 4
            output, y = output[found], y[found]
        return {"classes": F.cross_entropy(output, y)}


def test_a_detector_that_has_losses_in_training_alone_is_checked() -> None:
    verdict = accumulated(build(Detector(), detected), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert not verdict.evaluated
    assert not accumulated(build(Detector(nn.BatchNorm1d(16)), detected), vectors(), seed=0).passed
    verdict = rounded(build(Detector(nn.Dropout()), detected), BF16, vectors(), seed=0)
    assert verdict.passed, verdict.reason


def test_a_detector_that_draws_among_all_candidates_is_compared_by_chance() -> None:
    verdict = accumulated(build(Detector(picked=True), detected), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert "draws of the step's own random numbers" in verdict.reason
    assert not verdict.evaluated


class Recurrent(nn.Module):
    """A recurrent layer that behaves on the CPU as cuDNN's does: it has no backward pass in evaluation mode.

    Args:
        by_hand: whether the kernel is called by a module of the user's own, which is no layer of torch.
    """

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True, dropout=0.0), nn.Linear(16, 4)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.cells(x[:, None])[0][:, -1]
        if hidden.requires_grad and not (self.training if self.by_hand else self.cells.training):
            hidden.register_hook(_no_backward)  # type: ignore[no-untyped-call]  # torch has no types here
        output: torch.Tensor = self.head(hidden)
        return output


def _no_backward(gradient: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


@needs_bf16
@pytest.mark.parametrize("by_hand", [False, True], ids=["layer", "by hand"])
def test_recurrent_layers_of_cudnn_are_compared_in_training_mode(by_hand: bool) -> None:
    model = Recurrent(by_hand)
    verdict = rounded(build(model, mean), BF16, vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert verdict.reason.startswith("cosine of the gradient ")
    fallback = (
        "compared in training mode, as evaluation mode fails: RuntimeError: cudnn RNN backward can only be called in"
    )
    assert (fallback in verdict.reason) is by_hand
    verdict = accumulated(build(model, mean), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@needs_bf16
def test_precision_that_recurrent_layers_do_not_survive_is_refused_in_training_mode() -> None:
    def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        loss: torch.Tensor = ((output + 300.0).to(output.dtype) - 300.0).square().mean()
        return loss

    verdict = rounded(build(Recurrent(by_hand=True), cancelling), BF16, vectors(), seed=0)
    assert not verdict.passed
    assert verdict.reason.endswith("cudnn RNN backward can only be called in training mode")
    assert "(at least 0.999)" in verdict.reason
