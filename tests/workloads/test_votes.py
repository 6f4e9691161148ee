"""Passes of ranks whose loaders have different numbers of batches. Votes of real ranks are in tests/ranks."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from autofit.workloads.votes import EndingTogether, Votes


class Two(Votes):
    """The votes of two ranks, of which the other one has `theirs` batches; None: it does not know how many."""

    theirs: list[int | None]

    def most(self, *mine: int) -> list[int]:
        """Returns the largest."""
        (theirs,) = self.theirs
        if len(mine) == 2:
            return [max(mine[0], theirs is None), max(mine[1], -(theirs or 0))]
        left[0] -= 1
        return [max(mine[0], left[0] < 0)]


left = [0]


def two(theirs: int, *, known: bool = True) -> Two:
    left[0] = theirs
    votes = Two(None, 0, 2)
    object.__setattr__(votes, "theirs", [theirs if known else None])
    return votes


class Stream(IterableDataset[int]):
    """Yields some samples, and says another number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)

    def __len__(self) -> int:
        return 100


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("theirs", [3, 4, 9])
def test_a_pass_has_the_batches_of_the_shortest_and_no_more_are_read(theirs: int, known: bool) -> None:
    mine: Any = [0, 1, 2] if known else DataLoader(Stream(3), batch_size=None)
    assert [int(each) for each in EndingTogether(mine, two(theirs, known=known))] == [0, 1, 2]


@pytest.mark.parametrize("known", [True, False])
def test_a_rank_with_more_leaves_them_out_and_says_so_once(known: bool) -> None:
    mine: Any = [0, 1, 2] if known else DataLoader(Stream(3), batch_size=None)
    loader = EndingTogether(mine, two(2, known=known))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            left[0] = 2
            assert [int(each) for each in loader] == [0, 1]
    assert ["each pass ends with the shortest" in str(each.message) for each in said] == [True]


def test_one_rank_that_does_not_know_has_all_vote_on_each_batch() -> None:
    with pytest.warns(UserWarning, match="each pass ends"):
        assert list(EndingTogether([0, 1, 2], two(1, known=False))) == [0]


def test_it_is_as_long_as_the_loader() -> None:
    assert len(EndingTogether([1], two(1))) == 1
