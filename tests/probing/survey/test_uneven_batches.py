"""Gates see samples that differ in what a loss may be a mean over."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from autofit.probing.survey.uneven_batches import uneven
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


def test_several_batches_are_others_each_time() -> None:
    data = TensorDataset(torch.arange(64.0)[:, None], torch.zeros(64, dtype=torch.long))
    found = uneven(BatchSource.of(DataLoader(data, batch_size=8)), 8, 3)
    assert len({tuple(each.batch[0][:, 0].tolist()) for each in found}) == 3
