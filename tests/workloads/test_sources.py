"""BatchSource over DataLoaders: any size is made, what the user set is kept, and the loader is never advanced."""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.sources import source_of
from tests.workloads.loaders import Texts, labels, pad, pairs, shuffling, use_all
from tests.workloads.ragged import text_lengths

LENGTHS = text_lengths(203)


def test_any_size_from_a_map_style_data_set() -> None:
    source = source_of(shuffling())
    assert (source.user_batch_size, source.length, source.varies, source.resizable) == (4, 10, False, True)
    assert source.notes == ()
    for size in (1, 3, 4, 10):
        made = source.typical(size, 2)
        assert [batch_size(batch) for batch in made] == [size, size]
        for x, y in made:
            assert torch.equal(x[:, 0], 3.0 * y)  # rows belong together
    assert len({label for batch in labels(source.typical(5, 2)) for label in batch}) == 10  # no repeats while enough


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_next_batches_of_a_seeded_shuffling_loader_are_the_same_as_without(options: dict[str, Any]) -> None:
    untouched, used = iter(shuffling(**options)), shuffling(**options)
    in_flight = iter(used)
    expected, before = next(untouched)[1].tolist(), next(in_flight)[1].tolist()
    use_all(source_of(used))
    assert before == expected
    assert labels(in_flight) == labels(untouched)
    fresh = shuffling(**options)
    assert (labels(fresh), labels(fresh))[1] == labels(used)  # the second pass too


def test_rebuild_keeps_what_the_user_set_and_the_order() -> None:
    def begin(worker: int) -> None: ...

    loader = shuffling(num_workers=2, worker_init_fn=begin, prefetch_factor=3, drop_last=True, timeout=9)
    again = source_of(loader).rebuild(3)
    assert isinstance(again, DataLoader)
    same = ("dataset", "collate_fn", "sampler", "num_workers", "generator", "prefetch_factor", "timeout", "drop_last")
    for name in (*same, "persistent_workers", "worker_init_fn", "pin_memory", "in_order"):
        assert getattr(again, name) is getattr(loader, name) or getattr(again, name) == getattr(loader, name)
    assert again.batch_size == 3
    assert len(again) == 3
    regrouped = [label for batch in labels(source_of(shuffling()).rebuild(5)) for label in batch]
    assert regrouped == [label for batch in labels(shuffling()) for label in batch]


def test_data_set_that_takes_lists_of_keys() -> None:
    data = pairs()
    batches = BatchSampler(SequentialSampler(data), 4, drop_last=False)
    source = source_of(DataLoader(data, batch_size=None, sampler=batches))
    assert (source.user_batch_size, source.length) == (4, 10)
    assert source.typical(7, 1)[0][0].shape == (7, 3)
    assert labels(source.rebuild(5)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    sample = (torch.ones(1, 3), torch.tensor([4]))
    repeated = source_of(DataLoader(data, batch_size=None, sampler=batches), worst_case=sample)
    assert repeated.worst(3)[1].tolist() == [4, 4, 4]


def test_a_loader_class_of_the_users_own_is_told() -> None:
    class Moving(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    assert "Moving overrides __iter__" in source_of(Moving(pairs(), batch_size=2)).notes[0]


def test_iterable_data_set_of_ready_batches() -> None:
    class Ready(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for at in range(5):
                yield torch.full((4, 2), float(at))

    source = source_of(DataLoader(Ready(), batch_size=None))
    assert (source.user_batch_size, source.length) == (4, 20)
    assert [len(batch) for batch in source.rebuild(8)] == [8, 8, 4]


def test_data_loader_without_batching_gives_ready_batches() -> None:
    class Ready(Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return torch.full((8, 2), float(index)), torch.full((8,), index)

    source: Any = source_of(DataLoader(Ready(), batch_size=None, shuffle=True))
    assert (source.user_batch_size, source.length) == (8, 48)
    assert source.typical(20, 1)[0][0].shape == (20, 2)
    assert [len(batch[1]) for batch in source.rebuild(16)] == [16, 16, 16]
    assert [len(batch[1]) for batch in source.rebuild(4)] == [4] * 12


def texts(**options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    return DataLoader(Texts(LENGTHS), 8, shuffle=True, collate_fn=pad, generator=generator, **options)


def widths(batches: Any) -> list[int]:
    return [batch["input_ids"].shape[1] for batch in batches]


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "prefetch_factor": 3}, {"drop_last": True}])
def test_batches_of_similar_length_are_a_loader_like_the_users(size: int, options: dict[str, Any]) -> None:
    loader = texts(**options)
    again: Any = source_of(loader).by_length.rebuild(size)
    for name in ("dataset", "collate_fn", "num_workers", "generator", "prefetch_factor", "worker_init_fn"):
        assert getattr(again, name) is getattr(loader, name) or getattr(again, name) == getattr(loader, name)
    count = len(LENGTHS) // size * size if options.get("drop_last") else len(LENGTHS)
    passes = [list(again), list(again)]
    for batches in passes:
        assert len(batches) == len(again)
        assert len({label for batch in batches for label in batch["label"].tolist()}) == count
        assert sum(widths(batches)) < 0.8 * sum(widths(source_of(loader).rebuild(size)))
    assert widths(passes[0]) != widths(passes[1])
    once_more: Any = source_of(texts(**options)).by_length.rebuild(size)
    assert [batch["label"].tolist() for batch in once_more] == [batch["label"].tolist() for batch in passes[0]]


def test_making_batches_of_similar_length_leaves_the_users_loader_as_it_is() -> None:
    untouched, used = iter(texts()), texts()
    in_flight, expected = iter(used), [batch["label"].tolist() for batch in untouched]
    before = next(in_flight)["label"].tolist()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    source = source_of(used)
    source.by_length.typical(8, 4)
    source.by_length.rebuild(8)
    assert torch.equal(torch.get_rng_state(), state)
    assert [before, *(batch["label"].tolist() for batch in in_flight)] == expected
    assert source.rebuild(8) is used


def test_all_samples_are_read_once_for_a_training_and_few_for_measuring() -> None:
    read: list[int] = []  # attributes of the data set are restored

    class Noted(Texts):
        def __getitem__(self, index: int) -> dict[str, Any]:
            read.append(index)
            return super().__getitem__(index)

    source = source_of(DataLoader(Noted(text_lengths(40_000)), 8, shuffle=True, collate_fn=pad), scan=16)
    read.clear()
    source.by_length.typical(8, 4)
    assert 1000 < len(read) < 20_000
    read.clear()
    loader = source.by_length.rebuild(8)
    assert sorted(read) == list(range(40_000))
    source.by_length.rebuild(4)
    next(iter(loader))
    assert len(read) == 40_000 + 8


@pytest.mark.parametrize("size", [4, 16, 48])
def test_typical_batches_of_similar_length_are_together_like_all(size: int) -> None:
    """Also in the square of their length, on which the time of attention depends."""
    lengths = [2 * length for length in text_lengths(2000)]
    loader = DataLoader(Texts(lengths), 8, shuffle=True, collate_fn=pad)
    every = [width for _ in range(3) for width in widths(source_of(loader).by_length.rebuild(size))]
    for seed in range(3):
        found = widths(source_of(loader, seed=seed).by_length.typical(size, 8))
        assert fmean(found) == pytest.approx(fmean(every), rel=0.05)
        assert fmean(width**2 for width in found) == pytest.approx(fmean(width**2 for width in every), rel=0.1)


def test_a_data_set_that_takes_lists_of_keys_is_grouped_too() -> None:
    class Listed(Texts):
        def __getitem__(self, keys: Any) -> Any:
            return pad([super(Listed, self).__getitem__(key) for key in keys])

    data = Listed(LENGTHS)
    loader: DataLoader[Any] = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 8, False))
    grouped: Any = source_of(loader).by_length.rebuild(8)
    assert sorted(label for batch in grouped for label in batch["label"].tolist()) == list(range(len(LENGTHS)))
    assert sum(widths(grouped)) < 0.8 * sum(widths(loader))
