"""Gates see samples that differ in what a loss may be a mean over, and batches with more padding."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.plan import Plan
from autofit.gates.batches import WeightedMean, padded, uneven, unevenly_weighted, weighted_mean
from autofit.gates.gradients import Steps
from autofit.gates.technique import technique
from autofit.gates.verdict import GateVerdict
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.counted_batches import Counted
from autofit.workloads.dataloaders import source_of
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.gates.comparing import (
    Build,
    build,
    norm,
    vectors,
)
from tests.probing import targets
from tests.workloads.loaders import Padding, Texts
from tests.workloads.ragged import text_lengths


def test_the_batch_whose_samples_differ_most_in_length_comes_first() -> None:
    source = source_of(targets.sentences((24,) * 11 + (3,), batch_size=8))
    found = uneven(source, 4)
    lengths = {int((row != -100).sum()) for row in found.batch["labels"]}
    assert len(lengths) == 2


def test_batches_that_cannot_be_cut_are_taken_as_they_are() -> None:
    loader = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), torch.rand(5)) for _ in range(3)]
    found = uneven(source_of(loader), 4)
    assert found.samples == 4


def test_rare_targets_are_looked_for_in_many_batches() -> None:
    targets = torch.zeros(512, dtype=torch.long)
    targets[::100] = 1
    source = source_of(DataLoader(TensorDataset(torch.arange(512.0)[:, None], targets), batch_size=8))
    mean = WeightedMean(torch.tensor([1.0, 50.0]), -100)
    found = unevenly_weighted(source, 8, mean)
    assert len(found) == 3
    assert all(set(batch.batch[1].tolist()) == {0, 1} for batch in found)
    assert unevenly_weighted(source, 8, WeightedMean(None, -100)) == []


WEIGHTS = torch.tensor([1.0, 1.0, 2.0, 1.0])


MODULE = nn.CrossEntropyLoss(weight=WEIGHTS)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda model, batch: MODULE(model(batch[0]), batch[1]), (True, -100)),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], WEIGHTS), (True, -100)),
        (lambda model, batch: F.nll_loss(model(batch[0]).log_softmax(1), batch[1], ignore_index=0), (False, 0)),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), None),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], WEIGHTS, reduction="sum"), None),
    ],
)
def test_the_loss_is_recognised_wherever_it_is_called(loss: Any, found: tuple[bool, int] | None) -> None:
    mean = weighted_mean(Steps(build(norm("none"), loss)), Counted(vectors(), 8))
    assert (None if mean is None else (mean.by_class, mean.ignored)) == found


def test_samples_differ_by_the_weight_of_their_targets() -> None:
    mean = WeightedMean(WEIGHTS, -100)
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, 1, 3])), 3) == 0
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, 2, 3])), 3) == 0.5
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, -100, 3])), 3) == 1
    assert mean.unevenness((torch.tensor([0, 7, 8]),), 3) == 0  # classes that the loss does not have


class Classifier(nn.Module):
    """A mean over tokens; `masked` leaves padding out."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.masked = nn.Embedding(64, 8), nn.Linear(8, 4), masked
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden, mask = torch.tanh(self.embed(batch["input_ids"])), batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1) if self.masked else hidden.mean(1)
        output: torch.Tensor = self.head(self.dropout(mean))
        return output


def builder(model: nn.Module) -> Build:
    rule = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch), batch["label"] % 4), False, "")

    def build(plan: Plan) -> TrainStep:
        optimizer = torch.optim.SGD(model.parameters())
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu")), members())

    return build


def gate(model: nn.Module, collate: Any, lengths: list[int] | None = None) -> Any:
    source = source_of(DataLoader(Texts(lengths or text_lengths(64)), 4, shuffle=True, collate_fn=collate))
    found = padded(source, source.padded_to(8), 4)
    if isinstance(found, GateVerdict):
        return found
    return technique(Steps(builder(model)), Plan(), Counted(found[1], 4), strict=True, before=Counted(found[0], 4))


def test_a_model_that_ignores_padding_passes() -> None:
    found = gate(Classifier(masked=True), Padding())
    assert found.passed
    assert found.compared
    assert "relative L2 of the gradient" in found.reason


def test_a_model_that_reads_padding_does_not() -> None:
    found = gate(Classifier(masked=False), Padding())
    assert not found.passed
    assert found.compared
    assert found.reason.startswith("relative L2 of the gradient")


def test_batches_that_need_no_padding_check_nothing() -> None:
    found = gate(Classifier(masked=False), Padding(), [8, 16] * 32)
    assert (found.passed, found.compared) == (False, False)
    assert "no batch was padded further" in found.reason


class Masking(Padding):
    """Replaces a token at random, as for masked language models."""

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(samples)
        batch["input_ids"][:, 0] = random.randrange(1, 63)
        return batch


def test_random_batches_cannot_be_compared() -> None:
    random.seed(0)
    found = gate(Classifier(masked=True), Masking())
    assert (found.passed, found.compared) == (False, False)
    assert "other batches each time" in found.reason


class TrainsOnly(Classifier):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("no loss in evaluation mode")
        return super().forward(batch)


def test_a_step_that_runs_in_training_mode_only_is_compared_in_it() -> None:
    found = gate(TrainsOnly(masked=True), Padding())
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
