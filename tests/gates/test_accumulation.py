"""Accumulation passes where it keeps the gradient, and is refused where samples meet; nothing is left behind (F46)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.gates.accumulation import carried
from autofit.gates.gradients import Steps
from autofit.gates.verdict import GateVerdict
from autofit.workloads.counted_batches import Counted
from autofit.workloads.micro_batch_weights import SUM, Weighing
from tests.cpu import needs_bf16
from tests.gates.comparing import (
    BF16,
    Loss,
    Recurrent,
    accumulated,
    balanced,
    build,
    contrastive,
    in_training,
    mean,
    norm,
    rounded,
    tokens,
    total,
    unchanged,
    vectors,
)
from tests.probing import targets


@pytest.mark.parametrize("kind", ["none", "layer", "group", "dropout", "frozen"])
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.fault("F46")
def test_accumulation_passes_where_samples_are_independent(kind: str, size: int) -> None:
    verdict = accumulated(build(norm(kind), mean), vectors(size), seed=0)
    assert verdict.passed, verdict.reason
    assert "accumulation gives the same gradient" in verdict.reason


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("batch", mean),
        ("by hand", mean),
        ("none", contrastive),
        ("none", balanced),
        ("none", in_training(contrastive)),
        ("dropout", in_training(balanced)),
    ],
    ids=["batch norm", "batch norm by hand", "contrastive", "balance", "in training", "balance in training"],
)
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.fault("F46")
def test_accumulation_is_refused_where_samples_meet(kind: str, loss: Loss, size: int) -> None:
    verdict = accumulated(build(norm(kind), loss), vectors(size), seed=0)
    assert not verdict.passed
    assert "accumulation changes the gradient of this model: relative L2" in verdict.reason
    assert "at most 0.001" in verdict.reason


def standardised(model: nn.Module, batch: Any) -> torch.Tensor:
    """Weighs samples by targets in units of the batch's deviation, as PPO does with advantages."""
    scale = (batch[1].float() - batch[1].float().mean()) / (batch[1].float().std() + 1e-8)
    loss: torch.Tensor = (model(batch[0]).mean(1) * scale).mean()
    return loss


@pytest.mark.filterwarnings("ignore:std")
def test_a_deviation_over_the_batch_is_asked_about_with_halves_not_with_single_samples() -> None:
    torch.manual_seed(0)
    verdict = accumulated(build(norm("group"), standardised), vectors(), seed=0)
    assert not verdict.passed
    assert "nan" not in verdict.reason
    assert "accumulation changes the gradient of this model: relative L2" in verdict.reason


def squeezed(model: nn.Module, batch: Any) -> torch.Tensor:
    """Squeezes its outputs, so that a batch of one has no dimension left to index."""
    outputs = model(batch[0])[:, :1].squeeze()
    return F.mse_loss(outputs[torch.arange(len(batch[0]))], batch[1].float())


def test_a_step_that_fails_with_single_samples_is_asked_about_with_parts_of_several() -> None:
    with pytest.raises(IndexError):
        squeezed(norm("none"), vectors(1))
    verdict = accumulated(build(norm("none"), squeezed), vectors(8), seed=0)
    assert verdict.passed, verdict.reason


@pytest.mark.fault("F46")
def test_a_sum_is_recognised_by_the_norm_alone() -> None:
    """All samples alike: the direction is right, only the length is not."""
    inputs, labels = vectors(1)
    alike = inputs.expand(4, -1).clone(), labels.expand(4).clone()
    found = accumulated(build(norm("none"), mean), alike, seed=0)
    assert found.passed
    assert found.weighing == ""
    verdict = accumulated(build(norm("none"), total), alike, seed=0)
    assert verdict.weighing == str(SUM)
    assert "weighted by samples: relative L2 of the gradient 7.5e-01" in verdict.reason


UNEVEN = [(3, 24), (3, 24, 24, 3), (24, 3, 3, 24, 3, 24, 24, 3)]


@pytest.mark.parametrize("lengths", UNEVEN)
@pytest.mark.fault("F46")
def test_a_mean_over_tokens_of_uneven_samples_is_kept_by_weighing_tokens(lengths: tuple[int, ...]) -> None:
    """D10, also where both halves of the batch have as many tokens; weights by samples are off by more than half."""
    verdict = accumulated(build(targets.Transformer(), targets.token_mean), tokens(lengths), seed=0)
    assert verdict.passed, verdict.reason
    assert verdict.weighing == str(Weighing("['labels']", ignored=-100))
    assert "micro batches weighted by batch['labels'] != -100: relative L2" in verdict.reason
    found = accumulated(build(targets.Transformer(), targets.sample_mean), tokens(lengths), seed=0)
    assert found.passed
    assert found.weighing == ""


def test_a_mean_over_tokens_of_even_samples_passes() -> None:
    assert accumulated(build(targets.Transformer(), targets.token_mean), tokens((6, 6, 6, 6)), seed=0).passed


def test_a_model_in_16_bits_is_allowed_its_own_rounding_and_nothing_else() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0].bfloat16(), batch[1])).float()

    verdict = accumulated(build(norm("none").bfloat16(), step), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert "at most 0.05" in verdict.reason
    assert not accumulated(build(norm("batch").bfloat16(), step), vectors(), seed=0).passed


def test_a_zero_gradient_shows_nothing() -> None:
    verdict = accumulated(build(norm("none"), lambda model, batch: 0.0 * mean(model, batch)), vectors(), seed=0)
    assert not verdict.passed
    assert "the gradient is zero" in verdict.reason


def test_parameters_that_only_some_samples_reach_count_as_zero() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flags = x[:, 0] > 0
            output = torch.zeros(len(x), 4)
            if flags.any():
                output[flags] = self.one(x[flags])
            if (~flags).any():
                output[~flags] = self.two(x[~flags])
            return output

    verdict = accumulated(build(Routed(), mean), vectors(), seed=0)
    assert verdict.passed, verdict.reason


def test_modes_weights_random_numbers_and_gradients_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16).eval(), nn.Linear(16, 4))

    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))

    with unchanged(model):
        accumulated(build(model, noisy, max_grad_norm=1.0), vectors(), seed=0)
    with unchanged(model):
        rounded(build(model, noisy), BF16, vectors(), seed=0)


def test_modes_are_back_after_a_failure() -> None:
    model = norm("dropout")

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        raise KeyError("labels")

    with pytest.raises(KeyError):
        accumulated(build(model, broken), vectors(), seed=0)
    assert all(module.training for module in model.modules())


def test_a_step_that_empties_its_batch_can_be_asked_twice() -> None:
    def pops(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch.pop("x")), batch.pop("y"))

    batch = dict(zip(("x", "y"), vectors(), strict=True))
    assert accumulated(build(norm("none"), pops), batch, seed=0).passed
    assert rounded(build(norm("none"), pops), BF16, batch, seed=0).passed
    assert batch.keys() == {"x", "y"}


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


class Hidden(nn.Module):
    """Keeps its hidden state; `reads` decides whether the next step uses it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.reads = nn.GRU(4, 6, batch_first=True), reads
        self.hidden: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, hidden = self.cell(x, self.hidden[0] if self.hidden and self.reads else None)
        self.hidden = [hidden.detach()]
        found: torch.Tensor = output.square().mean()
        return found


class Averaging(nn.Module):
    """A moving average has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean.lerp(x.mean((0, 1)), 0.5)
        found: torch.Tensor = (self.layer(x) - self.mean).square().mean()
        return found


def judged(model: nn.Module) -> GateVerdict:
    def restore() -> None:
        if isinstance(model, Hidden):
            model.hidden = []
        elif isinstance(model, Averaging):
            model.mean.zero_()

    batch = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    made = build(model, lambda model, batch: model(batch))
    return carried(Steps(made, restore=restore), Counted(batch, 6), Counted(batch[:3], 3))


def test_a_hidden_state_of_the_samples_keeps_the_batch() -> None:
    found = judged(Hidden(reads=True))
    assert not found.passed
    assert found.reason.startswith("model.hidden has a row for each sample of a batch and is carried to the next step")


def test_what_no_step_reads_is_no_state() -> None:
    assert judged(Hidden(reads=False)).passed


def test_state_without_rows_keeps_no_batch() -> None:
    assert judged(Averaging()).passed


def test_a_generator_of_the_users_own_is_no_state() -> None:
    """Its numbers are the same in the next step, so that tensors of the batch's size change nothing."""
    own, model = torch.Generator().manual_seed(0), Hidden(reads=False)
    made = build(model, lambda model, batch: model(batch + torch.randn(batch.shape, generator=own)))
    batch = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    assert carried(Steps(made), Counted(batch, 6), Counted(batch[:3], 3)).passed
