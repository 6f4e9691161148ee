"""Rows U1, U2, U3 and U19 of the trials by users: what a comparison of gradients must not overlook."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.briefing import Options
from autofit.gates.verdict import Checked
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload


def checked(workload: Workload, micro_batch_size: int) -> Checked:
    """Returns the check of the baseline at another micro batch, with the global batch kept if it is given."""
    with LocalBench(workload, devices.choose("cpu"), Options(strategies=("batching",))) as bench:
        baseline = bench.briefing.space.baseline
        steps = baseline.accumulation_steps
        if workload.global_batch_size is not None:
            steps = workload.global_batch_size // micro_batch_size
        return bench.check(baseline.replace(micro_batch_size=micro_batch_size, accumulation_steps=steps), {})


def rare(rate: float, criterion: Any = None, as_step: bool = False, step_fn: Any = None) -> Workload:
    """Returns a workload of two classes, of which one is rare, with a criterion or a step function."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    y = (torch.rand(4096, generator=generator) < rate).long()
    x = torch.randn(4096, 48, generator=generator) + y[:, None]
    model = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2))
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)
    given: dict[str, Any] = {"loss_fn": criterion} if step_fn is None else {"step_fn": step_fn}
    if as_step:
        given = {"step_fn": lambda model, batch: criterion(model(batch[0]), batch[1])}
    return Workload(model, loader, global_batch_size=128, **given)


@pytest.mark.parametrize("as_step", [False, True], ids=["loss_fn", "step_fn"])
@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_u1_class_weights_are_compared_on_samples_of_both_classes(rate: float, as_step: bool) -> None:
    found = checked(rare(rate, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0])), as_step), 16)
    assert (found.passed, found.checked) == (False, True)
    assert "accumulation changes the gradient of this model" in found.reason


def test_u1_equal_class_weights_keep_the_gradient() -> None:
    assert checked(rare(0.01, nn.CrossEntropyLoss(weight=torch.tensor([2.0, 2.0]))), 16).passed


def test_u1_classes_that_no_sample_shows_are_not_checked() -> None:
    found = checked(rare(0.0, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0]))), 16)
    assert (found.passed, found.checked) == (False, False)
    assert "the samples that were read are all of one" in found.reason


def test_u1_rare_ignored_targets_are_found_and_weighted() -> None:
    found = checked(rare(0.01, nn.CrossEntropyLoss(ignore_index=1)), 16)
    assert found.passed, found.reason
    assert found.verdicts["accumulation"].weighing == "batch[1] != 1"


def over_positives(model: nn.Module, batch: Any) -> torch.Tensor:
    """Divides by the number of positive samples, as detectors do."""
    x, y = batch
    losses = F.binary_cross_entropy_with_logits(model(x)[:, 0], y.float(), reduction="none")
    loss: torch.Tensor = losses.sum() / y.sum().clamp(min=1)
    return loss


@pytest.mark.parametrize(
    ("rate", "passed", "said"),
    [
        (0.1, False, "accumulation changes the gradient of this model"),
        (0.03, False, "accumulation changes the gradient of this model"),
        (0.002, False, "of which no batch that was read has two"),
        (0.0, True, ""),
    ],
)
def test_a_sum_over_rare_positives_is_not_taken_for_a_sum_over_samples(rate: float, passed: bool, said: str) -> None:
    found = checked(rare(rate, step_fn=over_positives), 16)
    assert found.passed is passed
    assert said in found.reason


def test_a_true_sum_with_rare_positives_is_added_up() -> None:
    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    found = checked(rare(0.03, step_fn=step_fn), 16)
    assert found.passed, found.reason
    assert found.verdicts["accumulation"].weighing == "1"


def over_a_mask(model: nn.Module, batch: Any) -> torch.Tensor:
    """Leaves out samples that are marked as damaged, and averages over the rest."""
    x, damaged = batch
    losses = (model(x) - 1).square().mean(1)
    loss: torch.Tensor = (losses * (1 - damaged)).sum() / (1 - damaged).sum()
    return loss


def test_rare_samples_that_the_users_own_code_leaves_out_are_found_and_weighted() -> None:
    found = checked(rare(0.02, step_fn=over_a_mask), 16)
    assert found.passed, found.reason
    assert found.verdicts["accumulation"].weighing == "batch[1] != 1"


def matched(model: nn.Module, batch: Any) -> torch.Tensor:
    """Makes the targets of its weighted loss itself, as a detector does that matches queries and boxes."""
    classes = (batch[0].mean(1) > 0).long()
    return F.cross_entropy(model(batch[0]), classes, torch.tensor([1.0, 0.1]))


def test_a_weighted_loss_of_targets_that_it_makes_itself_is_compared() -> None:
    found = checked(rare(0.0, step_fn=matched), 16)
    assert (found.passed, found.checked) == (False, True)
    assert "accumulation changes the gradient of this model" in found.reason


def penalised(model: nn.Module, batch: Any) -> torch.Tensor:
    """Penalises the gradient with respect to the inputs, so that it cannot run without gradients."""
    x = batch[0].clone().requires_grad_()
    outputs = model(x)
    (slopes,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
    loss: torch.Tensor = F.cross_entropy(outputs, batch[1]) + slopes.square().mean()
    return loss


def test_a_step_that_takes_gradients_itself_is_compared() -> None:
    found = checked(rare(0.5, step_fn=penalised), 16)
    assert found.passed, found.reason


class Carrying(nn.Module):
    """Carries its hidden state between batches, one row per stream."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rnn, self.head = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 50)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, state = self.rnn(self.embed(x), self.state)
        self.state = state.detach()
        logits: torch.Tensor = self.head(output)
        return logits


class Streams:
    """Each row of a batch continues the row of the batch before."""

    def __init__(self) -> None:
        self.tokens = torch.arange(20)[:, None].repeat(1, 161)

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[Any]:
        for at in range(0, 160, 16):
            yield self.tokens[:, at : at + 16], self.tokens[:, at + 1 : at + 17]


def next_token(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@pytest.mark.parametrize(("total", "micro", "name"), [(20, 10, "accumulation"), (None, 10, "batch_size")])
def test_u2_state_with_a_row_for_each_sample_keeps_the_batch(total: int | None, micro: int, name: str) -> None:
    found = checked(Workload(Carrying(), Streams(), step_fn=next_token, global_batch_size=total), micro)
    assert (found.passed, found.checked) == (False, True)
    assert found.reason.startswith(f"{name}: model.state has a row for each sample of a batch")
    assert [refusal.name for refusal in found.refused] == [name]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(32, 8, dtype=torch.cfloat) / 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ self.w.real, x @ self.w.imag


def imaginary_statistic(model: nn.Module, batch: Any) -> torch.Tensor:
    """Only the imaginary half depends on the batch."""
    real, imaginary = model(batch[0])
    scaled = imaginary / imaginary.std(0, correction=0).add(0.1)
    loss: torch.Tensor = (real - batch[1]).square().mean() + (scaled - batch[1]).square().mean()
    return loss


def numbers() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 32, generator=generator), torch.randn(256, 8, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=32)


def test_u3_the_imaginary_half_of_a_gradient_counts() -> None:
    found = checked(Workload(Complex(), numbers(), step_fn=imaginary_statistic, global_batch_size=32), 4)
    assert (found.passed, found.checked) == (False, True)


class Scaled(nn.Module):
    """A criterion with a weight; `mixes` makes its gradient depend on the other samples of a batch."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.scale, self.mixes = nn.Parameter(torch.tensor(0.5)), mixes

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(output, target)
        if self.mixes:
            return loss + 30 * (self.scale - 4 * target.mean().square()).square()
        found: torch.Tensor = self.scale * loss
        return found


@pytest.mark.parametrize("mixes", [True, False])
def test_u19_the_parameters_of_a_criterion_count_and_are_no_state_of_the_step(mixes: bool) -> None:
    torch.manual_seed(0)
    model, criterion = nn.Linear(32, 8), Scaled(mixes)
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": criterion.parameters()}], 0.1)
    workload = Workload(model, numbers(), loss_fn=criterion, optimizer=optimizer, global_batch_size=32)
    found = checked(workload, 4)
    assert found.passed is not mixes
    assert not any("by itself" in text for text in (*found.caveats, found.reason))
    assert criterion.scale.grad is None
