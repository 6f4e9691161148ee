"""The part of a loader's samples that belongs to one of several ranks."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from autofit.workloads.dataloaders import shared
from autofit.workloads.resized_samplers import Share

RANKS = 3


def data(size: int = 20) -> Dataset[Any]:
    return TensorDataset(torch.arange(size))


def drawn(loader: Any) -> list[int]:
    return [int(x) for (batch,) in loader for x in batch]


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_have_all_samples_together_and_shuffled_ones_in_another_order_each_time(shuffle: bool) -> None:
    loaders = [shared(DataLoader(data(), 4, shuffle=shuffle), number, RANKS) for number in range(RANKS)]
    first, second = [[drawn(each) for each in loaders] for _ in range(2)]
    assert {len(each) for each in first} == {7}, "the last samples are repeated, so that all ranks have as many"
    assert set(Counter(x for each in first for x in each)) == set(range(20))
    assert (first == second) is not shuffle
    if not shuffle:
        assert first[1] == [1, 4, 7, 10, 13, 16, 19]


def test_its_other_settings_are_kept() -> None:
    given = DataLoader(data(), 4, shuffle=True, drop_last=True, collate_fn=list, num_workers=1, timeout=5)
    found = shared(given, 1, RANKS)
    assert (found.batch_size, found.drop_last, found.num_workers, found.timeout) == (4, True, 1, 5)
    assert found.collate_fn is list
    assert isinstance(found.sampler, Share)
    assert (found.sampler.rank, found.sampler.num_replicas, found.sampler.drop_last) == (1, RANKS, True)


def test_a_batch_sampler_of_torch_keeps_its_size() -> None:
    samples: Any = data()
    given = DataLoader(samples, batch_sampler=BatchSampler(SequentialSampler(samples), 5, drop_last=False))
    assert [len(batch) for (batch,) in shared(given, 0, RANKS)] == [5, 2]


def test_a_loader_with_a_rule_of_its_own_stays_as_it_is() -> None:
    samples: Any = data()
    few, again = RandomSampler(samples, num_samples=8), RandomSampler(samples, replacement=True)
    samplers: list[Any] = [DistributedSampler(samples, RANKS, 1), few, again]
    for sampler in samplers:
        loader = DataLoader(samples, 4, sampler=sampler)
        assert shared(loader, 1, RANKS) is loader
    unbatched, batches = DataLoader(samples, batch_size=None), [torch.zeros(1)]
    assert shared(unbatched, 1, RANKS) is unbatched
    assert shared(batches, 1, RANKS) is batches
