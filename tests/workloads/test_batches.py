"""BatchSource: whatever the loader, sizes, copies, the seed and the user's worst case are treated alike."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from autofit.core.errors import WorkloadError
from autofit.workloads.dataloaders import shared
from autofit.workloads.sources import source_of
from tests.workloads.loaders import TOKENS, Batches, SizedStream, Stream, Texts, labels, pad, pairs, shuffling, use_all


def test_choice_is_the_seeds_and_not_the_global_generators() -> None:
    state, numbers = torch.random.get_rng_state(), random.getstate()
    first = labels(source_of(shuffling(), seed=3).typical(4, 2))
    torch.manual_seed(99)
    random.seed(99)
    assert labels(source_of(shuffling(), seed=3).typical(4, 2)) == first
    assert labels(source_of(shuffling(), seed=4).typical(4, 2)) != first
    torch.random.set_rng_state(state)
    random.setstate(numbers)
    use_all(source_of(shuffling()))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert random.getstate() == numbers


def test_the_users_own_size_gives_the_users_own_loader() -> None:
    for loader in (shuffling(), [torch.zeros(4, 2)], DataLoader(SizedStream(8), batch_size=4)):
        assert source_of(loader).rebuild(4) is loader


def test_what_a_caller_does_to_a_batch_does_not_reach_the_users_data() -> None:
    batches = [torch.zeros(4, 2)]
    source = source_of(batches)
    for batch in (*source.typical(4, 2), source.worst(4), source.typical(2, 1)[0]):
        batch.add_(1)
    assert batches[0].sum() == 0


def test_worst_case_given_as_a_function() -> None:
    loader = DataLoader(Texts(TOKENS), batch_size=2, collate_fn=pad)
    source = source_of(loader, worst_case=lambda size: {"input_ids": torch.zeros(size, 77)})
    assert source.worst(5)["input_ids"].shape == (5, 77)
    stubborn = source_of(loader, worst_case=lambda size: {"input_ids": torch.zeros(1, 77)})
    with pytest.raises(WorkloadError, match=r"worst_case\(5\) returned 1 samples"):
        stubborn.worst(5)


def test_worst_case_given_as_a_sample() -> None:
    sample = {"input_ids": [1] * 99, "label": 0}
    source = source_of(DataLoader(Texts(TOKENS), batch_size=2, collate_fn=pad), worst_case=sample)
    assert source.worst(3)["input_ids"].shape == (3, 99)
    assert not any("scanned" in note for note in source.notes)


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (pairs(), "wrap it: DataLoader"),
        (Stream(3), "wrap it: DataLoader"),
        (torch.zeros(4, 2), "loader of type Tensor"),
        ({"x": torch.zeros(4)}, "loader of type dict"),
        (3, "loader of type int"),
        (None, "loader of type NoneType"),
        ([], "yields no batch"),
        (DataLoader(TensorDataset(torch.zeros(0, 2)), batch_size=2), "yields no batch"),
        (DataLoader(Stream(0), batch_size=2), "yields no batch"),
        (Batches(DataLoader(Stream(0), batch_size=2)), "yields no batch"),
        (["a", "b"], "without a tensor"),
        (DataLoader(["a", "b"], batch_size=2), "without a tensor"),  # type: ignore[arg-type]  # a list is a data set
        ((torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), "different structure"),
        ([torch.zeros(0, 3)], "has no samples"),
    ],
)
def test_what_is_no_loader_is_refused_with_advice(loader: Any, text: str) -> None:
    with pytest.raises(WorkloadError, match=text) as caught:
        source_of(loader)
    assert "expected" in str(caught.value)


def test_sizes_and_counts_are_positive() -> None:
    source = source_of([torch.zeros(4, 2)])
    with pytest.raises(WorkloadError, match="batch size of 0"):
        source.typical(0, 1)
    with pytest.raises(WorkloadError, match="count of 0"):
        source.typical(1, 0)


def test_errors_of_the_users_data_set_are_theirs() -> None:
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            raise KeyError("missing column")

    with pytest.raises(KeyError, match="missing column"):
        source_of(DataLoader(Broken(), batch_size=2))


class Halves(Sampler[list[int]]):
    """A rule of the user's: two lists, whatever the batch size."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1, 2, 3], [4, 5, 6, 7])


ROWS = TensorDataset(torch.zeros(8, 2))


@pytest.mark.parametrize(
    ("loader", "size", "samples"),
    [
        (DataLoader(ROWS, batch_size=4), 4, 0),
        (DataLoader(ROWS, batch_size=4), 3, 2),
        (DataLoader(ROWS, batch_size=4, shuffle=True), 16, 8),
        (DataLoader(ROWS, batch_size=4, drop_last=True), 3, 0),
        (DataLoader(ROWS, batch_sampler=Halves()), 3, 0),
        (DataLoader(SizedStream(8), batch_size=4), 3, 2),
        (DataLoader(SizedStream(8), batch_size=4, num_workers=2), 3, 0),
        ([torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(1, 2)], 4, 1),
        ([torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(1, 2)], 2, 1),
        ([torch.zeros(4, 2), torch.zeros(4, 2)], 4, 0),
        ([torch.zeros(4, 2), torch.zeros(4, 3)], 3, 1),
    ],
)
def test_the_samples_of_an_incomplete_last_batch(loader: Any, size: int, samples: int) -> None:
    source = source_of(loader)
    assert source.remainder(size) == samples
    if samples and not isinstance(getattr(loader, "dataset", None), IterableDataset):
        sizes = [len(batch) if isinstance(batch, torch.Tensor) else len(batch[0]) for batch in source.rebuild(size)]
        assert sizes[-1] == samples


def test_of_several_ranks_the_last_batch_is_that_of_the_part_of_one() -> None:
    rows: Any = TensorDataset(torch.randn(405, 2))
    divided, own = DataLoader(rows, 16), DataLoader(rows, 16, sampler=range(203))
    assert source_of(divided).remainder(16, 2) == len([*shared(divided, 0, 2)][-1][0]) == 203 % 16
    assert source_of(own).remainder(16, 2) == 203 % 16
    assert source_of(DataLoader(rows, 16, drop_last=True)).remainder(16, 2) == 0


def test_a_look_that_fails_on_a_small_batch_is_repeated_with_the_users_size_which_is_kept() -> None:
    source, seen = source_of(DataLoader(ROWS, batch_size=4)), list[int]()

    def look(size: int) -> int:
        seen.append(size)
        if size < 4:
            raise RuntimeError("expected 4 rows")
        return size

    assert [source.on_small(look), source.on_small(look), source.by_length.small_size] == [4, 4, 4]
    assert seen == [2, 4, 4]


@pytest.mark.parametrize(("error", "sizes"), [(RuntimeError, [2, 4]), (WorkloadError, [2])])
def test_a_look_that_fails_at_the_users_size_too_raises_and_keeps_nothing(
    error: type[Exception], sizes: list[int]
) -> None:
    source, seen = source_of(DataLoader(ROWS, batch_size=4)), list[int]()

    def look(size: int) -> int:
        seen.append(size)
        raise error(f"no {size}")

    with pytest.raises(error, match=f"no {sizes[-1]}"):
        source.on_small(look)
    assert seen == sizes
    assert source.small_size == 2
