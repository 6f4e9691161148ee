"""A batch sampler of the user's own with another batch size: by a copy, by its constructor, or joined and cut."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autofit.workloads.resized_samplers import Constructed, Copied, Rechunked, resized
from tests.workloads.ragged import Buckets, MadeBuckets, text_lengths

LENGTHS = text_lengths(2000)


class Private(Buckets):
    """Holds its size under a name of its own."""

    def __init__(self) -> None:
        super().__init__(LENGTHS, 8)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        self._batch_size = size


class Stubborn(Buckets):
    """Shows a batch size that it does not use."""

    def __init__(self) -> None:
        super().__init__(LENGTHS, 8)
        self.made = self._batches()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.made)


class Secretive(MadeBuckets):
    """Its constructor takes what it does not keep."""

    def __init__(self, texts: list[int], batch_size: int) -> None:
        super().__init__(texts, batch_size)


class Failing(MadeBuckets):
    def __init__(self, lengths: list[int], batch_size: int) -> None:
        if batch_size != 8:
            raise ValueError("8 or nothing")
        super().__init__(lengths, batch_size)


class Slotted:
    __slots__ = ("batch_size",)

    def __init__(self) -> None:
        self.batch_size = 8

    def __iter__(self) -> Iterator[list[int]]:
        return iter(Buckets(LENGTHS, 8))

    def __len__(self) -> int:
        return len(Buckets(LENGTHS, 8))


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (lambda: Buckets(LENGTHS, 8), Copied),
        (Private, Copied),
        (lambda: MadeBuckets(LENGTHS, 8), Constructed),
        (Stubborn, Rechunked),
        (lambda: Secretive(LENGTHS, 8), Rechunked),
        (lambda: Failing(LENGTHS, 8), Rechunked),
        (Slotted, Rechunked),
        (lambda: list(Buckets(LENGTHS, 8)), Rechunked),
    ],
)
@pytest.mark.parametrize("size", [4, 16])
def test_the_first_way_that_gives_batches_of_the_size_is_taken(make: Callable[[], Any], way: type, size: int) -> None:
    sampler = make()
    found = resized(sampler, size, 8, drop_last=False)
    lists = list(found)
    assert type(found) is way
    assert max(map(len, lists)) == size
    assert sorted(key for keys in lists for key in keys) == list(range(2000))
    if way is not Rechunked:
        assert len(found) == len(lists)  # type: ignore[arg-type]  # each way has a length
        assert all(len({LENGTHS[key] // 8 for key in keys}) == 1 for keys in lists)
    assert max(map(len, sampler)) == 8


def test_groups_that_are_too_small_for_a_size_are_joined() -> None:
    lengths = [8 * (at // 20) for at in range(200)]  # ten groups of twenty
    assert type(resized(Buckets(lengths, 4), 10, 4, drop_last=False)) is Copied
    found = resized(Buckets(lengths, 4), 12, 4, drop_last=False)
    assert type(found) is Rechunked
    assert [len(keys) for keys in found] == [12] * 16 + [8]


def test_what_a_pass_changes_is_written_back_but_for_the_size() -> None:
    class Counting(Buckets):
        def __iter__(self) -> Iterator[list[int]]:
            self.epoch += 1
            yield from self._batches()

    sampler = Counting(LENGTHS, 8)
    found = resized(sampler, 16, 8, drop_last=False)
    assert sampler.epoch == 0
    first, second = list(found), list(found)
    assert (sampler.epoch, sampler.batch_size) == (2, 8)
    assert first != second


def test_a_constructed_sampler_gets_what_its_owner_sets_later() -> None:
    class Seeded(MadeBuckets):
        def __init__(self, lengths: list[int], batch_size: int) -> None:
            super().__init__(lengths, batch_size)
            self.epoch = self.turn = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch, self.made = epoch, self.made[::-1]

        def __iter__(self) -> Iterator[list[int]]:
            return iter(self.made[self.turn :] + self.made[: self.turn])

    sampler = Seeded(LENGTHS, 8)
    found = resized(sampler, 16, 8, drop_last=False)
    first = list(found)
    sampler.turn = 1
    assert list(found) == first[1:] + first[:1]
    sampler.turn = 0
    sampler.set_epoch(3)  # makes lists of 8 there
    assert list(found) == list(found) == first[::-1]
