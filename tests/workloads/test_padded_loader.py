"""A loader whose collate function pads to a multiple, made from a copy: the user's loader is not changed."""

import copy
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.batches import fixed_padding, padded_loader
from autofit.workloads.dataloaders import source_of
from tests.workloads.loaders import Padding, Texts, pad
from tests.workloads.ragged import Buckets, text_lengths

LENGTHS = text_lengths(203)


def texts(**options: Any) -> DataLoader[Any]:
    given = {"batch_size": 8, "collate_fn": Padding(), "generator": torch.Generator().manual_seed(7), **options}
    return DataLoader(Texts(LENGTHS), **({"shuffle": True} if "batch_sampler" not in given else {}) | given)


def widths(batches: Any) -> list[int]:
    return [batch["input_ids"].shape[1] for batch in batches]


def test_the_same_batches_come_padded() -> None:
    plain, padded = list(texts()), list(padded_loader(texts(), 8))
    assert [batch["label"].tolist() for batch in padded] == [batch["label"].tolist() for batch in plain]
    assert widths(padded) == [-(-width // 8) * 8 for width in widths(plain)]
    assert any(width % 8 for width in widths(plain))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_the_users_loader_is_not_changed_also_while_it_is_iterated(options: dict[str, Any]) -> None:
    loader = texts(**options)
    in_flight = iter(loader)
    next(in_flight)
    before = dict(vars(loader)), dict(vars(loader.collate_fn))
    assert all(width % 8 == 0 for width in widths(padded_loader(loader, 8)))
    assert (dict(vars(loader)), dict(vars(loader.collate_fn))) == before
    assert len(list(in_flight)) == len(loader) - 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [torch.zeros(4, 3)], "ready batches"),
        (lambda: texts(collate_fn=pad), "the collate function pad has no pad_to_multiple_of"),
        (lambda: texts(collate_fn=Padding(16)), "already pads to a multiple of 16"),
    ],
)
def test_where_the_value_to_pad_with_is_not_known_it_is_said(make: Any, words: str) -> None:
    loader = make()
    assert words in fixed_padding(loader)
    with pytest.raises(WorkloadError, match=words):
        padded_loader(loader, 8)


def test_a_function_with_the_attribute_is_not_changed() -> None:
    def collate(samples: list[Any]) -> Any:
        return pad(samples)

    collate.pad_to_multiple_of = None  # type: ignore[attr-defined]
    assert "has no pad_to_multiple_of" in fixed_padding(texts(collate_fn=collate))


def test_a_source_of_padded_batches_has_them_for_measuring_for_the_proof_and_for_training() -> None:
    source = source_of(texts())
    padded = source.padded_to(8)
    assert source.padded_to(8) is padded
    assert all(width % 8 == 0 for width in widths([*padded.typical(4, 6), padded.worst(4), *padded.rebuild(8)]))
    assert padded.worst(4)["input_ids"].shape[1] == -(-max(LENGTHS) // 8) * 8
    for one, other in zip(source.typical(4, 6), padded.typical(4, 6), strict=True):
        assert torch.equal(one["label"], other["label"])


@pytest.mark.parametrize("size", [4, 8])
def test_padding_and_grouping_go_together_in_either_order(size: int) -> None:
    source = source_of(texts())
    both = source.by_length.padded_to(8)
    assert both is source.padded_to(8).by_length
    batches: Any = list(both.rebuild(size))
    assert all(width % 8 == 0 for width in widths(batches))
    assert sum(widths(batches)) < 0.8 * sum(widths(source.padded_to(8).rebuild(size)))
    assert sorted(label for batch in batches for label in batch["label"].tolist()) == list(range(203))


def test_a_batch_sampler_of_the_users_is_kept() -> None:
    sampler = Buckets(LENGTHS, 8)
    batches: Any = list(source_of(texts(batch_sampler=sampler, batch_size=1)).padded_to(8).rebuild(8))
    assert [batch["label"].tolist() for batch in batches] == list(copy.copy(sampler))
    assert all(width % 8 == 0 for width in widths(batches))


def test_a_worst_case_of_the_users_own_keeps_its_padding() -> None:
    source = source_of(texts(), worst_case=lambda size: pad([Texts([99])[0]] * size))
    assert "worst_case= makes its batches itself" in source.fixed_padding
