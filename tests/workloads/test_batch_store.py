"""Typical batches are made once, kept within bounds, and safe from the code that uses them."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autofit.workloads import batch_store, sample_batches
from autofit.workloads.batch_store import BatchStore, fresh
from autofit.workloads.batches import BatchSource
from autofit.workloads.representative_batches import representative
from autofit.workloads.sources import source_of
from autofit.workloads.tree import tensors
from tests.fakes import FakeTime
from tests.probing import targets


class Counting:
    """A source that counts what it is asked for."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def typical(self, size: int, count: int) -> list[Any]:
        self.asked.append((size, count))
        return self.source.typical(size, count)


def store_of(loader: Any) -> tuple[BatchStore, Counting]:
    source = Counting(source_of(loader))
    return BatchStore(source), source  # type: ignore[arg-type]  # as much of a source as the store needs


def test_batches_of_one_size_are_made_once() -> None:
    store, source = store_of(targets.vectors())
    first = store.typical(4, 3)
    assert [batch[0].shape for batch in first.batches] == [(4, 8)] * 12
    assert store.typical(4, 3) is first
    assert store.typical(8, 3) is not first
    assert source.asked == [(4, 12), (8, 12)]
    assert first.fetch_s > 0
    assert first.tokens is None
    assert first.tokens_per_step(3) is None
    assert first.cycle == 1


def test_more_steps_are_kept_if_batches_differ_because_each_has_samples_of_similar_length() -> None:
    source = source_of(targets.sentences((3, 24, 5, 17, 9), batch_size=2, samples=96))
    assert not source.groups_lengths
    assert source.by_length.groups_lengths
    for made, parts, steps in ((source, 2, 4), (source.by_length, 2, 8), (source.by_length, 16, 4)):
        found = BatchStore(made).typical(2, parts)
        assert (found.steps, found.cycle, len(found.batches)) == (steps, steps, steps * parts)
        assert found.places(steps) == found.places(0)


def test_choosing_samples_is_no_part_of_what_a_batch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(batch_store, "perf_counter", clock)

    def slow(*given: Any) -> Any:
        clock.advance(10.0)
        return representative(*given)

    monkeypatch.setattr(sample_batches, "representative", slow)
    store, _ = store_of(targets.sentences((3, 24, 5, 17, 9)))
    assert store.typical(2, 1).fetch_s == 0
    assert clock() == 10.0


@pytest.mark.parametrize(("parts", "kept"), [(1, 4), (16, 4), (20, 3), (40, 1), (64, 1), (100, 1)])
def test_steps_go_through_whole_batches_in_turn(parts: int, kept: int) -> None:
    store, _ = store_of(targets.sentences((3, 24)))
    typical = store.typical(2, parts)
    assert typical.cycle == kept
    assert len(typical.batches) == min(kept * parts, 64)
    steps = [[id(batch) for batch in typical.of_step(number)] for number in range(kept + 1)]
    assert all(len(step) == parts for step in steps)
    assert steps[kept] == steps[0]
    assert len({at for step in steps for at in step}) == len(typical.batches)


def test_the_oldest_are_dropped_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    store, source = store_of(targets.vectors())
    one = sum(tensor.nbytes for batch in store.typical(4, 1).batches for tensor in tensors(batch))
    monkeypatch.setattr(batch_store, "MOST_BYTES", 3 * one)
    store.typical(4, 2)  # 3 times as much
    store.typical(4, 1)  # used again, so the other is now the oldest
    store.typical(2, 2)  # as much as the first
    source.asked.clear()
    store.typical(4, 1)
    store.typical(2, 2)
    assert source.asked == []
    store.typical(4, 2)
    assert source.asked == [(4, 8)]


def test_batches_larger_than_all_that_is_kept_are_given_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_store, "MOST_BYTES", 1)
    store, source = store_of(targets.vectors())
    assert len(store.typical(8, 2).batches) == 8
    store.typical(4, 1)
    store.typical(8, 2)
    assert source.asked == [(8, 8), (4, 4), (8, 8)]


def test_useful_tokens_are_those_of_the_steps_that_ran() -> None:
    store, _ = store_of(targets.sentences((3, 24, 5, 17, 9)))
    typical = store.typical(1, 2)
    counts = [int(batch["attention_mask"].sum()) for batch in typical.batches]
    assert len(set(counts)) > 1
    assert typical.tokens_per_step(1) == sum(counts[:2])
    assert typical.tokens_per_step(3) == sum(counts[:6]) / 3
    assert typical.tokens_per_step(4) == typical.tokens_per_step(9) == sum(counts) / 4


def test_where_all_have_one_shape_no_size_has_more_useful_tokens_a_sample() -> None:
    padded = [{"input_ids": torch.ones(24, dtype=torch.long), "attention_mask": (torch.arange(24) < 1 + at % 24).long()}
              for at in range(96)]  # fmt: skip
    store, source = store_of(DataLoader(padded, batch_size=8, shuffle=True))  # type: ignore[arg-type]
    counts = {size: store.typical(size, 1).tokens_per_step(4) for size in (1, 2, 8, 64)}
    per_sample = {tokens / size for size, tokens in counts.items() if tokens is not None}
    assert len(per_sample) == 1
    assert per_sample.pop() == pytest.approx(12.5, abs=2.5)  # of 64 of the 96 samples
    assert source.asked.count((8, 8)) == 1


def test_a_fresh_batch_shares_nothing_that_can_be_changed() -> None:
    batch: dict[str, Any] = {"x": torch.ones(2), "nested": {"y": torch.ones(2)}, "names": ["a", "b"]}
    copy = fresh(batch)
    copy["x"].zero_()
    copy["nested"].pop("y")
    copy["names"].clear()
    assert torch.equal(batch["x"], torch.ones(2))
    assert "y" in batch["nested"]
    assert batch["names"] == ["a", "b"]


def test_fresh_batches_are_other_ones_in_each_call() -> None:
    store, _ = store_of(targets.sentences(tuple(range(3, 60)), batch_size=4, samples=57))
    shapes = [[tuple(batch["input_ids"].shape) for batch in islice(store.fresh(2), 6)] for _ in range(3)]
    assert len({tuple(each) for each in shapes}) == 3
    assert {size for each in shapes for size, _ in each} == {2}
    assert len({length for each in shapes for _, length in each}) > 8


@pytest.mark.parametrize(
    ("loader", "kept", "meets"),
    [
        (targets.sentences(tuple(range(3, 60)), batch_size=4, samples=57), 8, True),
        (targets.sentences(tuple(range(3, 60)), batch_size=4, samples=57), 60, False),
        (targets.sentences((3, 24), batch_size=4), 8, False),
        (targets.vectors(), 0, False),
        ([torch.zeros(4, length) for length in range(3, 60)], 8, True),
        ([torch.zeros(4, length) for length in range(3, 60, 8)], 8, False),  # each pass has the same eight batches
    ],
)
def test_shapes_are_new_if_there_are_more_of_them_than_kernels_are_kept(loader: Any, kept: int, meets: bool) -> None:
    store = BatchStore(source_of(loader))
    assert store.meets_new_shapes(store.typical(4, 2), kept) == meets
