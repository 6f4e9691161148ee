"""Where accumulation changes the gradient, the gate says why: by a measurement, in words, for each known cause."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.probing.survey import accumulation_causes, gates
from autofit.probing.survey.gradients import Gradients
from autofit.probing.watchdog import Overdue
from autofit.workloads.batch_algebra import split
from autofit.workloads.counted_batches import Counted
from autofit.workloads.micro_batch_weights import SUM
from tests.probing.survey.test_gates import (
    Loss,
    balanced,
    build,
    contrastive,
    in_training,
    mean,
    norm,
    standardised,
    total,
    vectors,
)
from tests.probing.survey.test_gradients import guarded

IN_EVALUATION = "in evaluation mode, accumulation gives the same gradient: relative L2"
IN_LOSS = "Samples of a batch interact in the loss: each sample has the same outputs alone"


class Centred(nn.Module):
    """Subtracts the mean of the batch, also in evaluation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Routed(nn.Module):
    """Two experts with a balance term, as in Switch: share of the samples times mean probability, over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances = self.router(x).softmax(1)
        chosen = chances.argmax(1)
        self.balance = 2 * (F.one_hot(chosen, 2).float().mean(0) * chances.mean(0)).sum()
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        output: torch.Tensor = outputs[torch.arange(len(x)), chosen] * chances.amax(1, keepdim=True)
        return output


def routed(model: nn.Module, batch: Any) -> torch.Tensor:
    output = model(batch[0])
    balance: Any = model.balance
    loss: torch.Tensor = F.cross_entropy(output, batch[1]) + 0.1 * balance
    return loss


def weighted(model: nn.Module, batch: Any) -> torch.Tensor:
    """A mean with weights that the batch does not hold."""
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    weights = 1 + batch[0][:, 0].exp()
    loss: torch.Tensor = (losses * weights).sum() / weights.sum()
    return loss


def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = mean(model, batch) * len(batch[0]) ** 0.5
    return loss


class Paired(nn.Module):
    """Computes its own contrastive loss, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        first, second = F.normalize(self.body(x)), F.normalize(self.body(x + 0.1))
        logits = first @ second.T / 0.1
        return {"loss": F.cross_entropy(logits, torch.arange(len(x))), "logits": logits}


def several_norms() -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)]
    return nn.Sequential(*norms, nn.Linear(8, 4))


def without_statistics() -> nn.Module:
    """Batch normalisation that has no running statistics uses those of the batch in evaluation too."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.Linear(16, 4))


CAUSES: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[str, ...]]] = {
    "batch norm": (
        lambda: norm("batch"),
        mean,
        ("interact in batch normalisation (1 layer: 1): with it " + IN_EVALUATION,),
    ),
    "batch norms": (several_norms, mean, ("in batch normalisation (3 layers: 0, 2 and 1 more)",)),
    "batch norm by hand": (
        lambda: norm("by hand"),
        mean,
        (
            "interact in 1 (ByHand). They do in training mode only: in evaluation mode, accumulation gives",
            "The step changes model.1.mean by itself",
        ),
    ),
    "batch norm without statistics": (
        without_statistics,
        mean,
        ("in batch normalisation (1 layer: 1): its outputs for a sample are others in a micro batch",),
    ),
    "another module": (
        lambda: nn.Sequential(nn.Linear(8, 4), Centred()),
        mean,
        ("interact in 1 (Centred). They do in evaluation mode too",),
    ),
    "contrastive": (lambda: norm("none"), contrastive, (IN_LOSS, "the mean of its parts' is 0; it is lower for fewer")),
    "contrastive in the model": (
        Paired,
        lambda model, batch: model(batch[0])["loss"],
        ("interact in the model itself (Paired) or the loss: the loss of the batch is", "(contrastive loss). They do"),
    ),
    "contrastive in training": (
        lambda: norm("none"),
        in_training(contrastive),
        ("interact in the loss: each sample", "(contrastive loss). They do in training mode only"),
    ),
    "balance": (
        lambda: norm("none"),
        balanced,
        (IN_LOSS, "it is higher for fewer samples", "(balance of routed experts"),
    ),
    "routed experts": (
        Routed,
        routed,
        (IN_LOSS, "it is higher for fewer samples", "(balance of routed experts"),
    ),
    "statistic": (lambda: norm("none"), standardised, (IN_LOSS, "a statistic over the batch is part of it")),
    "weights that are not in the batch": (
        lambda: norm("none"),
        weighted,
        ("do not interact, but its gradient is a sum of theirs with weights from 0.0", "put the labels or the mask"),
    ),
    "scaled": (
        lambda: norm("none"),
        scaled,
        ("its gradient is 2.83 times the mean of theirs: the loss is scaled by the size of the batch",),
    ),
}


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_measured_and_named(name: str) -> None:
    make, loss, said = CAUSES[name]
    model = make()
    verdict = gates.accumulation(build(model, loss), vectors(), seed=0, state=guarded(model))
    assert not verdict.passed
    assert verdict.reason.startswith("accumulation changes the gradient of this model: relative L2")
    assert verdict.reason.endswith("numerics='any' allows accumulation nevertheless")
    for words in said:
        assert words in verdict.reason, verdict.reason
    assert not any(module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_sum_over_samples_is_added_up(size: int) -> None:
    verdict = gates.accumulation(build(norm("none"), total), vectors(size), seed=0)
    assert verdict.passed
    assert verdict.weighing == SUM
    assert "micro batches added up, since the loss is a sum" in verdict.reason
    assert f"norm ratio {1 / size:.4f}" in verdict.reason


def test_a_sum_over_samples_that_also_interact_is_a_change() -> None:
    verdict = gates.accumulation(build(norm("batch"), total), vectors(), seed=0)
    assert not verdict.passed
    assert "in batch normalisation (1 layer: 1)" in verdict.reason
    assert "with micro batches added up, since the loss is a sum" in verdict.reason


def test_a_verdict_stands_where_no_time_is_left_to_explain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def overdue(*_: Any) -> str:
        raise Overdue

    monkeypatch.setattr(accumulation_causes._Causes, "norms", overdue)
    verdict = gates.accumulation(build(norm("batch"), mean), vectors(), seed=0)
    assert not verdict.passed
    assert verdict.reason.endswith(accumulation_causes.UNKNOWN)


def test_a_measurement_that_fails_leaves_the_others() -> None:
    """A step that fails in evaluation mode, and whose samples interact."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        assert model.training
        return contrastive(model, batch)

    reason = gates.accumulation(build(norm("none"), step), vectors(), seed=0).reason
    assert IN_LOSS in reason
    assert "evaluation mode" not in reason


def test_rows_in_another_order_than_samples_are_no_interaction() -> None:
    """A module that sees all samples of one step before those of the next, as recurrent models do."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.first(x.view(-1, 2, 4).transpose(0, 1).flatten(0, 1))
            output: torch.Tensor = self.last(rows.view(2, -1, 4).transpose(0, 1).sum(1))
            return output

    assert IN_LOSS in gates.accumulation(build(Turned(), contrastive), vectors(), seed=0).reason


def test_many_parts_are_not_fitted_one_by_one() -> None:
    calls = 0

    def counting(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return weighted(model, batch)

    batch = vectors(16)
    gradients = Gradients(build(norm("none"), counting))
    whole, parts = Counted(batch, 16), [Counted(part, 1) for part in split(batch, [1] * 16)]
    text = accumulation_causes.cause(gradients, whole, parts, 0, lambda other: "")
    assert "weights from" not in text
    assert calls < 120
