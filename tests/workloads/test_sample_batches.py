"""Batches collated from samples: variable lengths, the worst batch, few samples."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autofit.core.errors import WorkloadError
from autofit.workloads.sources import source_of
from autofit.workloads.tree import tensors
from tests.workloads.loaders import TOKENS, Texts, labels, pad, pairs
from tests.workloads.ragged import Buckets, text_lengths


def test_data_set_smaller_than_the_batch() -> None:
    source = source_of(DataLoader(pairs(5), batch_size=8))
    assert (source.user_batch_size, source.length) == (8, 5)
    assert list(source.notes) == []
    (batch,) = source.typical(12, 1)
    assert batch[1].shape == (12,)
    assert set(batch[1].tolist()) == set(range(5))
    assert source.notes == ("batches above 5 samples repeat samples: the data holds no more",)
    assert len(list(source.rebuild(16))) == 1


def test_drop_last_that_leaves_no_batch_is_an_error() -> None:
    with pytest.raises(WorkloadError, match=r"yields no batch \(5 samples, batch size 8, drop_last=True\)"):
        source_of(DataLoader(pairs(5), batch_size=8, drop_last=True))
    source = source_of(DataLoader(pairs(5), batch_size=2, drop_last=True))
    assert [len(batch) for batch in labels(source.rebuild(4))] == [4]
    with pytest.raises(WorkloadError, match="expected at most 5"):
        source.rebuild(6)


def test_a_data_set_with_getitems_is_asked_once_a_batch() -> None:
    class Many(TensorDataset):
        def __init__(self) -> None:
            super().__init__(torch.arange(6))
            self.lists: list[list[int]] = []

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.lists.append(indices)
            return [self[at] for at in indices]

    data = Many()
    source = source_of(DataLoader(data, batch_size=2))
    data.lists.clear()
    source.typical(3, 1)
    assert [len(indices) for indices in data.lists] == [3]


@pytest.mark.fault("F36")
def test_worst_batch_has_the_outlier_and_the_next_longest() -> None:
    source = source_of(DataLoader(Texts(TOKENS), batch_size=2, collate_fn=pad))
    assert source.varies
    worst = source.worst(3)
    assert worst["label"].tolist() == [4, 8, 2]
    assert worst["input_ids"].shape == (3, 40)
    assert source.tokens(worst) == 40 + 9 + 8
    assert source.worst(12)["input_ids"].shape == (12, 40)
    assert "repeat samples" in source.notes[-1]
    assert source.structure() == "input_ids int64[B, *]; attention_mask int64[B, *]; label int64[B]"


def test_a_second_call_for_the_worst_makes_one_batch_only() -> None:
    data = Texts(TOKENS)
    source = source_of(DataLoader(data, batch_size=2, collate_fn=pad))
    before = data.asked
    first, asked = source.worst(3), data.asked
    assert asked == before + 3  # all tensors have the same longest samples
    assert torch.equal(source.worst(3)["input_ids"], first["input_ids"])
    assert data.asked == asked + 3


def test_lengths_that_collate_pads_away_do_not_vary() -> None:
    def fixed(samples: list[dict[str, Any]]) -> torch.Tensor:
        return torch.zeros(len(samples), 64)

    source = source_of(DataLoader(Texts(TOKENS), batch_size=2, collate_fn=fixed))
    assert not source.varies
    assert source.structure() == "float32[B, 64]"


def test_a_partial_scan_of_samples_that_are_all_alike_needs_no_note() -> None:
    data = Texts([3] * 500)
    assert source_of(DataLoader(data, batch_size=2, collate_fn=pad), scan=50).notes == ()


@pytest.mark.fault("F36")
def test_partial_scan_is_told_and_bounded() -> None:
    data = Texts([3, 4, 5, 6, 7] * 100)
    source = source_of(DataLoader(data, batch_size=2, collate_fn=pad), scan=50)
    assert source.notes[0].startswith("50 of 500 samples were scanned")
    assert data.asked < 70


def test_worst_of_detection_pads_both_sides() -> None:
    sides = [(4, 40), (40, 4), (20, 20), (5, 5)]

    class Images(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.zeros(3, *sides[index])

    def pad_both(samples: list[torch.Tensor]) -> torch.Tensor:
        height, width = (max(image.shape[side] for image in samples) for side in (1, 2))
        return torch.zeros(len(samples), 3, height, width)

    source = source_of(DataLoader(Images(), batch_size=2, collate_fn=pad_both))
    assert source.worst(2).shape == (2, 3, 40, 40)


def test_detection_batches_of_lists() -> None:
    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(3, 8, 8 + index), {"boxes": torch.zeros(index + 1, 4)}

    loader = DataLoader(Images(), batch_size=2, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))
    source = source_of(loader, worst_case=lambda size: ([torch.zeros(3, 8, 8)] * size, [{}] * size))
    images, targets = source.typical(4, 1)[0]
    assert (len(images), len(targets)) == (4, 4)
    assert source.varies
    assert len(source.worst(5)[0]) == 5
    assert source.structure() == "[0][B] float32[3, 8, *]; [1][B].boxes float32[*, 4]"


def test_batches_hold_all_fields_of_nested_samples() -> None:
    data = [{"in": {"a": torch.ones(2)}, "y": at} for at in range(5)]
    source = source_of(DataLoader(data, batch_size=2))  # type: ignore[arg-type]  # a list is a data set
    assert len(list(tensors(source.typical(3, 1)[0]))) == 2
    assert source.structure() == "in.a float32[B, 2]; y int64[B]"


def test_fresh_batches_have_other_samples_in_each_draw() -> None:
    source = source_of(DataLoader(pairs(10), batch_size=4))
    drawn = [labels(islice(source.fresh(4, draw), 6)) for draw in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert all(len(set(batch)) == 4 for batches in drawn for batch in batches)
    (large,) = labels(islice(source.fresh(12, 1), 1))
    assert len(large) == 12
    assert set(large) == set(range(10))
    with pytest.raises(WorkloadError, match="found a batch size of 0"):
        source.fresh(0, 1)


def test_fresh_batches_are_grouped_as_the_loader_groups_them() -> None:
    lengths = text_lengths()
    texts = [torch.full((length,), length) for length in lengths]
    loader: Any = DataLoader(texts, batch_sampler=Buckets(lengths, 4), collate_fn=nn.utils.rnn.pad_sequence)  # type: ignore[arg-type]
    for batch in islice(source_of(loader).fresh(4, 1), 20):
        assert len(set((batch[0] // 8).tolist())) == 1


class Images(Dataset[Any]):
    """Images of different widths, which no two of a batch share."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, at: int) -> Any:
        return torch.ones(3, 4, 4 + at), at


def test_the_users_batch_of_one_is_kept_where_no_other_can_be_collated() -> None:
    source = source_of(DataLoader(Images(), batch_size=1))
    assert (source.resizable, source.small_size, source.varies) == (False, 1, True)
    assert source.worst(1)[0].shape == (1, 3, 4, 12)
    assert "B" in source.structure()
    assert source.notes == ("the batch size stays 1: making a batch of another size raises RuntimeError",)
    with pytest.raises(WorkloadError, match="a batch of 2 was requested"):
        source.typical(2, 1)


def test_images_of_which_only_some_differ_are_not_joined_by_luck() -> None:
    class Rarely(Images):
        def __getitem__(self, at: int) -> Any:
            return torch.ones(3, 4, 5 if at == 7 else 4), at

    assert not source_of(DataLoader(Rarely(), batch_size=1)).resizable


def test_a_collate_function_of_one_size_keeps_it() -> None:
    def collate(rows: list[Any]) -> torch.Tensor:
        return torch.stack([row for (row,) in rows]).view(4, 2)

    source = source_of(DataLoader(TensorDataset(torch.zeros(9, 2)), batch_size=4, collate_fn=collate))
    assert (source.resizable, source.small_size) == (False, 4)


def test_what_fails_at_the_users_size_too_is_the_users_error() -> None:
    def collate(rows: list[Any]) -> torch.Tensor:
        raise KeyError(f"{len(rows)} rows")

    with pytest.raises(KeyError, match="4 rows"):
        source_of(DataLoader(pairs(9), batch_size=4, collate_fn=collate))
