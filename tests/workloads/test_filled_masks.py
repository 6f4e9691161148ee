"""A batch with filled masks has no short sample, and everything else in it stays as it is."""

import torch
from torch.utils.data import DataLoader

from autofit.workloads.batches import fill_masks
from autofit.workloads.sources import source_of
from tests.workloads.loaders import Texts, pad


def test_all_samples_have_all_tokens_or_all_but_one() -> None:
    found = fill_masks(pad([{"input_ids": [7] * length, "label": 3} for length in (5, 2, 1)]))
    assert found["attention_mask"].sum(1).tolist() == [5, 4, 4]
    assert (found["input_ids"] == 7).all()
    assert found["label"].tolist() == [3, 3, 3]


def test_masks_and_tokens_may_have_a_prefix() -> None:
    batch = pad([{"input_ids": [7] * length, "label": 0} for length in (4, 2)])
    found = fill_masks({f"chosen_{name}": tensor for name, tensor in batch.items()})
    assert found["chosen_attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert (found["chosen_input_ids"] == 7).all()


def test_nested_masks_are_filled_and_what_is_no_mask_of_a_batch_is_not() -> None:
    batch = {"text": {"attention_mask": torch.zeros(2, 2)}, "attention_mask": torch.zeros(2, 1, 3, 3)}
    found = fill_masks(batch)
    assert found["text"]["attention_mask"].tolist() == [[1, 1], [1, 1]]
    assert not found["attention_mask"].any()


def test_a_filled_source_differs_in_its_worst_batch_alone() -> None:
    source = source_of(DataLoader(Texts([*range(3, 30), 64]), 4, collate_fn=pad, shuffle=True))
    filled = source.filled
    assert filled is source.filled
    for mine, theirs in zip(filled.typical(4, 3), source.typical(4, 3), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert filled.worst(4)["input_ids"].shape == source.worst(4)["input_ids"].shape
    assert filled.worst(4)["attention_mask"].sum(1).tolist() == [64, 63, 63, 63]
    assert source.worst(4)["attention_mask"].sum(1).tolist() == [64, 29, 28, 27]
    assert filled.rebuild(4) is source.rebuild(4)


def test_batches_of_similar_length_stay_filled() -> None:
    source = source_of(DataLoader(Texts(list(range(3, 40))), 4, collate_fn=pad, shuffle=True))
    for filled in (source.filled.by_length, source.by_length.filled):
        assert (filled.worst(4)["attention_mask"].sum(1) >= 38).all()


def test_the_users_own_worst_batch_is_not_changed() -> None:
    worst = pad([{"input_ids": [7] * length, "label": 0} for length in (9, 2)])
    source = source_of(DataLoader(Texts([5, 6] * 8), 2, collate_fn=pad), worst_case=lambda size: worst)
    assert source.filled.worst(2)["attention_mask"].sum(1).tolist() == [9, 8]
    assert worst["attention_mask"].sum(1).tolist() == [9, 2]
