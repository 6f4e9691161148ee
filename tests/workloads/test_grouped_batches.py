"""Groups: a few batches of a loader that are together like all that it makes."""

import random
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from autofit.workloads.lengths import SampleLengths, scan
from autofit.workloads.representative_batches import LISTS, MEASURED, Groups
from autofit.workloads.sources import source_of
from tests.workloads.ragged import Buckets, text_lengths

LENGTHS = text_lengths(2000)


class Data:
    """Texts; counts how often one is looked at."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.asked = lengths, 0

    def __call__(self, at: int) -> torch.Tensor:
        self.asked += 1
        return torch.zeros(self.lengths[at])


def groups_of(lists: Callable[[int], Iterable[list[Any]]], data: Data, scanned: int = 2000) -> Groups:
    count = len(data.lengths)
    lengths = scan(data, count, scanned)
    return Groups(lists, SampleLengths(range(count), data, lengths), lengths)


def padded(batches: Iterable[list[int]], lengths: list[int]) -> float:
    return fmean(max(lengths[at] for at in keys) for keys in batches)


@pytest.mark.parametrize("scanned", [2000, 500])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_few_are_like_all(size: int, scanned: int) -> None:
    data = Data(LENGTHS)
    groups = groups_of(lambda size: Buckets(LENGTHS, size), data, scanned)
    every = [keys for keys in Buckets(LENGTHS, size) if len(keys) == size]
    for seed in range(4):
        found = groups.typical(size, 4, random.Random(seed))
        assert found is not None
        assert all(keys in every for keys in found)
        assert padded(found, LENGTHS) == pytest.approx(padded(every, LENGTHS), rel=0.02 if scanned == 2000 else 0.1)


def test_few_samples_are_looked_at_beside_those_that_were_scanned() -> None:
    data = Data(LENGTHS)
    groups = groups_of(lambda size: Buckets(LENGTHS, size), data, 100)
    data.asked = 0
    groups.typical(8, 4, random.Random(0))
    assert 0 < data.asked <= LISTS * MEASURED


def test_the_batches_of_a_long_sorted_data_set_come_from_all_of_it() -> None:
    lengths = sorted(text_lengths(100_000))
    data = Data(lengths)
    groups = groups_of(lambda size: BatchSampler(SequentialSampler(lengths), size, False), data, 64)
    found = groups.typical(8, 4, random.Random(0))
    assert found is not None
    assert padded(found, lengths) == pytest.approx(fmean(lengths), rel=0.05)
    assert all(keys == list(range(keys[0], keys[0] + 8)) for keys in found)


def test_where_there_are_too_few_they_come_twice_and_where_there_is_none_it_is_said() -> None:
    groups = groups_of(lambda size: [[0, 1, 2], [3, 4]], Data([3, 5, 8, 2, 4]), 5)
    assert groups.typical(3, 2, random.Random(0)) == [[0, 1, 2]] * 2
    assert groups.typical(4, 1, random.Random(0)) is None


class Classes:
    """Batches of some classes with some samples each; shows no way to make others, and has samples of one length."""

    def __init__(self, classes: int = 4, each: int = 4) -> None:
        self.classes, self.each = classes, each

    def __iter__(self) -> Iterator[list[int]]:
        order = random.sample(range(20), 20)
        for first in range(0, 20, self.classes):
            yield [10 * label + at for label in order[first : first + self.classes] for at in range(self.each)]

    def __len__(self) -> int:
        return 20 // self.classes


def test_samples_meet_as_the_users_own_sampler_has_them_meet_also_where_all_are_of_one_length() -> None:
    labels = torch.arange(200) // 10
    # The sampler is not a subclass of Sampler, as many are not.
    loader = DataLoader(TensorDataset(torch.zeros(200, 3), labels), batch_sampler=Classes())
    source = source_of(loader)
    assert not source.varies
    assert any("Classes cannot make batches of another size" in note for note in source.notes)
    for size in (16, 8):
        for _, found in source.typical(size, 3):
            assert sorted(found.unique(return_counts=True)[1].tolist()) == [4] * (size // 4)
    assert len({tuple(found.tolist()) for _, found in source.typical(16, 3)}) > 1
    assert torch.equal(source.typical(16, 1)[0][1], source.typical(16, 1)[0][1])


def test_batches_that_join_the_users_have_halves_of_two_of_them() -> None:
    labels = torch.arange(200) // 10
    rows = TensorDataset(torch.zeros(200, 3), labels)
    joined = source_of(DataLoader(rows, batch_sampler=Classes(classes=1, each=8))).joined(8)
    assert len(joined) == 4
    for each in joined:
        first, second = each.batch[1].split(4)
        assert each.samples == 8
        assert len(first.unique()) == len(second.unique()) == 1
        assert first[0] != second[0]
        assert torch.equal(each.cut([4, 4])[1].batch[1], second)
    assert source_of(DataLoader(rows, 8, shuffle=True)).joined(8) == [], "the loader makes batches of any size itself"


def test_full_batches_are_all_of_a_pass_that_have_the_size() -> None:
    groups = groups_of(lambda size: [[0, 1, 2], [3, 4], [4, 2, 0]], Data([3, 5, 8, 2, 4]), 5)
    assert groups.full(3, random.Random(0)) == [[0, 1, 2], [4, 2, 0]]
