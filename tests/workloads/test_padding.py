"""The share of padding, counted without a mask."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.sample_batches import padding_share
from autofit.workloads.sources import source_of
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import Buckets, Sentences, text_lengths


def lengths_to_batch(keys: list[int]) -> torch.Tensor:
    return torch.zeros(len(keys), max(keys))


def test_it_is_what_a_batch_has_beyond_its_samples_alone() -> None:
    assert padding_share(lengths_to_batch, [[2, 4], [4, 4]]) == pytest.approx(2 / 16)
    assert padding_share(lengths_to_batch, [[3, 3]]) == 0.0


def test_padding_to_a_fixed_length_is_not_counted_since_no_order_saves_it() -> None:
    assert padding_share(lambda keys: torch.zeros(len(keys), 10), [[2, 4], [4, 4]]) == 0.0


def test_samples_that_are_joined_have_none() -> None:
    assert padding_share(lambda keys: torch.cat([torch.zeros(key) for key in keys]), [[2, 4]]) == 0.0


def test_a_source_measures_it_on_typical_batches_of_either_order() -> None:
    lengths = text_lengths(1000)
    source = source_of(DataLoader(Texts(lengths), 8, shuffle=True, collate_fn=pad))

    def share(loader: Any) -> float:
        masks = [batch["attention_mask"] for batch in loader]
        return 1 - sum(int(mask.sum()) for mask in masks) / sum(int(mask.numel()) for mask in masks)

    # The labels, one per sample and mask, are elements without padding.
    assert source.padding(8) == pytest.approx(share(source.loader), abs=0.03)
    assert source.by_length.padding(8) == pytest.approx(share(source.by_length.rebuild(8)), abs=0.03)


def test_ready_batches_show_no_samples_to_compare_with() -> None:
    source = source_of([torch.zeros(4, 3), torch.zeros(4, 5)])
    with pytest.raises(WorkloadError, match="ready batches"):
        source.padding(4)
    with pytest.raises(WorkloadError, match="ready batches"):
        _ = source.reading_s
    with pytest.raises(WorkloadError, match="ready batches"):
        _ = source.by_length


def test_a_batch_sampler_of_the_users_has_the_padding_of_its_own_batches() -> None:
    lengths = text_lengths()
    data = Sentences(lengths)
    random = source_of(DataLoader(data, 8, shuffle=True, collate_fn=pad))
    bucketed = source_of(DataLoader(data, batch_sampler=Buckets(lengths, 8), collate_fn=pad))
    assert bucketed.padding(8) < 0.5 * random.padding(8)
