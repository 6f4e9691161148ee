"""BatchSource and the samplers of a DataLoader: only what a sampler can draw, and its state is put back."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from autofit.workloads.sources import source_of
from tests.workloads.loaders import labels, pairs, use_all


@pytest.mark.parametrize(
    ("sampler", "allowed", "length"),
    [
        (SubsetRandomSampler([1, 3, 5]), {1, 3, 5}, 3),
        (WeightedRandomSampler([0, 1, 0, 1, 1, 0, 0, 0, 0, 0], 7), {1, 3, 4}, 7),
        ([2, 4, 6, 8], {2, 4, 6, 8}, 4),
        (DistributedSampler(pairs(), num_replicas=2, rank=0), set(range(10)), 5),
    ],
)
def test_only_samples_that_the_sampler_can_draw(sampler: Any, allowed: set[int], length: int) -> None:
    source = source_of(DataLoader(pairs(), batch_size=2, sampler=sampler))
    assert source.length == length
    assert set(source.typical(10, 1)[0][1].tolist()) == allowed


class Seeded:
    """A sampler of the user's own with state: a generator and an epoch that moves in each pass."""

    def __init__(self, seed: int, count: int = 10) -> None:
        self.generator, self.draw, self.epoch = torch.Generator().manual_seed(seed), random.Random(seed), 0
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        order = torch.randperm(self.count, generator=self.generator).tolist()
        self.draw.shuffle(order)
        return iter(order)


class SeededBatches(Seeded):
    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        return iter([order[at : at + 4] for at in range(0, self.count, 4)])

    def __len__(self) -> int:
        return (self.count + 3) // 4


@pytest.mark.parametrize("make", [lambda: {"sampler": Seeded(5)}, lambda: {"batch_sampler": SeededBatches(5)}])
def test_a_sampler_of_the_users_own_is_put_back(make: Callable[[], dict[str, Any]]) -> None:
    def loader() -> DataLoader[Any]:
        options = make()
        return DataLoader(pairs(), **(options if "batch_sampler" in options else options | {"batch_size": 4}))

    used = loader()
    source = source_of(used)
    use_all(source)
    assert next(iter(labels(used))) == next(iter(labels(loader())))
    assert (source.length, source.user_batch_size) == (10, 4)


def test_custom_batch_sampler_is_regrouped_in_its_order() -> None:
    class Odd:
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[9, 8], [7, 6], [5, 4], [3]])

        def __len__(self) -> int:
            return 4

    source = source_of(DataLoader(pairs(), batch_sampler=Odd()))
    assert (source.user_batch_size, source.length) == (2, 7)
    assert set(source.typical(7, 1)[0][1].tolist()) == {3, 4, 5, 6, 7, 8, 9}
    again = source.rebuild(3)
    assert labels(again) == [[9, 8, 7], [6, 5, 4], [3]]
    assert len(again) == 3  # type: ignore[arg-type]  # a DataLoader
    assert labels(again) == [[9, 8, 7], [6, 5, 4], [3]]


def test_explicit_torch_batch_sampler_is_as_batch_size() -> None:
    loader = DataLoader(pairs(), batch_sampler=BatchSampler(SequentialSampler(pairs()), 4, drop_last=True))
    source = source_of(loader)
    assert (source.user_batch_size, source.length) == (4, 10)
    assert [len(batch) for batch in labels(source.rebuild(3))] == [3, 3, 3]


def test_batch_sampler_with_sizes_of_its_own_is_told() -> None:
    few: Any = [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9], [7]]
    source = source_of(DataLoader(pairs(), batch_sampler=few))
    assert source.user_batch_size == 3
    assert source.resizable
    assert "makes batches of 1 to 3 samples: batches of 3 are measured as the baseline" in " ".join(source.notes)


def test_a_batch_sampler_without_a_usual_size_keeps_its_batches() -> None:
    sampler: Any = [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9]]
    source = source_of(DataLoader(pairs(), batch_sampler=sampler))
    assert (source.user_batch_size, labels(source.rebuild(2))) == (2, sampler)
    assert (
        "list makes batches of 1 to 4 samples: they stay as they are, and the plan states their mean, 2" in source.notes
    )


def test_keys_that_are_no_numbers() -> None:
    class Named(Dataset[torch.Tensor]):
        def __getitem__(self, key: str) -> torch.Tensor:
            return torch.full((2,), float(ord(key)))

    source = source_of(DataLoader(Named(), batch_size=2, sampler=list("abc")))
    assert source.typical(3, 1)[0].shape == (3, 2)
    assert source.length == 3
