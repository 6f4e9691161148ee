"""Gates see samples that differ in what a loss may be a mean over."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.gates.batches import WeightedMean, uneven, unevenly_weighted, weighted_mean
from autofit.gates.gradients import Steps
from autofit.workloads.counted_batches import Counted
from autofit.workloads.sources import source_of
from tests.gates.comparing import (
    build,
    norm,
    vectors,
)
from tests.probing import targets


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
