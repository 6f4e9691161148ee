"""Typical batches are made once, kept within bounds, and safe from the code that uses them."""

from typing import Any

import pytest
import torch

from autofit.probing import batch_store
from autofit.probing.batch_store import BatchStore, fresh
from autofit.workloads.batches import BatchSource
from tests.probing import targets


class Counting:
    """A source that counts what it is asked for."""

    def __init__(self, source: BatchSource) -> None:
        self.source, self.asked = source, []

    def typical(self, size: int, count: int) -> list[Any]:
        self.asked.append((size, count))
        return self.source.typical(size, count)

    def tokens(self, batch: Any) -> int | None:
        return self.source.tokens(batch)


def store_of(loader: Any) -> tuple[BatchStore, Counting]:
    source = Counting(BatchSource.of(loader))
    return BatchStore(source), source  # type: ignore[arg-type]  # as much of a source as the store needs


def test_batches_of_one_size_are_made_once() -> None:
    store, source = store_of(targets.vectors())
    first = store.typical(4, 3)
    assert [batch[0].shape for batch in first.batches] == [(4, 8)] * 3
    assert store.typical(4, 3) is first
    assert store.typical(8, 3) is not first
    assert source.asked == [(4, 3), (8, 3)]
    assert first.fetch_s > 0
    assert first.tokens is None


def test_the_oldest_are_dropped_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    store, source = store_of(targets.vectors())
    one = sum(tensor.nbytes for tensor in store.typical(4, 1).batches[0])
    monkeypatch.setattr(batch_store, "MOST_BYTES", 3 * one)
    store.typical(4, 2)  # 3 batches of 4
    store.typical(4, 1)  # used again, so the other is now the oldest
    store.typical(2, 2)  # one more batch of 4 in samples
    source.asked.clear()
    store.typical(4, 1)
    store.typical(2, 2)
    assert source.asked == []
    store.typical(4, 2)
    assert source.asked == [(4, 2)]


def test_batches_larger_than_all_that_is_kept_are_given_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MOST_BYTES", 1)
    store, source = store_of(targets.vectors())
    assert len(store.typical(8, 2).batches) == 2
    store.typical(4, 1)
    store.typical(8, 2)
    assert source.asked == [(8, 2), (4, 1), (8, 2)]


def test_useful_tokens_are_a_mean_per_batch() -> None:
    store, _ = store_of(targets.sentences((3, 24)))
    typical = store.typical(4, 6)
    counts = [int(batch["attention_mask"].sum()) for batch in typical.batches]
    assert typical.tokens == sum(counts) / 6
    assert len(set(counts)) > 1


def test_a_fresh_batch_shares_nothing_that_can_be_changed() -> None:
    batch = {"x": torch.ones(2), "nested": {"y": torch.ones(2)}, "names": ["a", "b"]}
    copy = fresh(batch)
    copy["x"].zero_()
    copy["nested"].pop("y")
    copy["names"].clear()
    assert torch.equal(batch["x"], torch.ones(2))
    assert "y" in batch["nested"]
    assert batch["names"] == ["a", "b"]
