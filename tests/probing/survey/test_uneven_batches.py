"""Gates see samples that differ in what a loss may be a mean over."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from autofit.probing.survey.uneven_batches import uneven, unevenly_weighted
from autofit.probing.survey.weighted_means import WeightedMean
from autofit.workloads.batches import BatchSource
from tests.probing import targets


def test_the_batch_whose_samples_differ_most_in_length_comes_first() -> None:
    source = BatchSource.of(targets.sentences((24,) * 11 + (3,), batch_size=8))
    (found,) = uneven(source, 4)
    lengths = {int((row != -100).sum()) for row in found.batch["labels"]}
    assert len(lengths) == 2


def test_batches_that_cannot_be_cut_are_taken_as_they_are() -> None:
    loader = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), torch.rand(5)) for _ in range(3)]
    (found,) = uneven(BatchSource.of(loader), 4)
    assert found.samples == 4


def test_rare_targets_are_looked_for_in_many_batches() -> None:
    targets = torch.zeros(512, dtype=torch.long)
    targets[::100] = 1
    source = BatchSource.of(DataLoader(TensorDataset(torch.arange(512.0)[:, None], targets), batch_size=8))
    mean = WeightedMean(torch.tensor([1.0, 50.0]), -100)
    found = unevenly_weighted(source, 8, mean)
    assert len(found) == 3
    assert all(set(batch.batch[1].tolist()) == {0, 1} for batch in found)
    assert unevenly_weighted(source, 8, WeightedMean(None, -100)) == []
