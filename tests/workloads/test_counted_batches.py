"""Counted batches: the number of samples goes with a batch through workers, pinned memory and copies."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler
from torch.utils.data._utils.pin_memory import pin_memory

from autofit.workloads.counted_batches import Collating, Counted, Cuttable, EquallyCounted, counted
from autofit.workloads.sources import source_of
from autofit.workloads.step import StepLoader
from autofit.workloads.tree import map_tensors
from tests.workloads.loaders import pairs
from tests.workloads.ragged import CASES, Clicks, collate_clicks


def test_a_counted_batch_stays_one_through_copies_and_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    batch = Counted({"x": torch.arange(6)}, 3)
    for same in (map_tensors(batch, torch.clone), pin_memory(batch)):  # type: ignore[no-untyped-call]  # torch has no types here
        assert type(same) is Counted
        assert same.samples == 3
        assert torch.equal(same.batch["x"], batch.batch["x"])


def test_a_plain_batch_is_counted_by_its_shapes() -> None:
    assert counted(torch.zeros(4, 2)).samples == 4
    assert counted(Counted(torch.zeros(4, 2), 7)).samples == 7


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_rebuilt_loader_counts_what_was_collated(size: int, workers: int) -> None:
    source = source_of(DataLoader(Clicks(10), batch_size=4, collate_fn=collate_clicks, num_workers=workers))
    found = list(source.rebuild(size, counted=True))
    assert [batch.samples for batch in found] == [size] * (10 // size) + [10 % size] * (10 % size > 0)
    assert [len(batch.batch["clicked"]) for batch in found] == [batch.samples for batch in found]


def test_plain_batches_still_come_from_a_loader_that_is_not_to_count() -> None:
    source = source_of(CASES["graphs"].loader(4))
    assert not any(isinstance(batch, Counted) for batch in source.rebuild(8))


class Lists(Dataset[Any]):
    """Takes a list of keys and gives a batch."""

    name = "kept"

    def __len__(self) -> int:
        return 10

    def __getitem__(self, keys: list[int]) -> Any:
        return collate_clicks([Clicks(10)[key] for key in keys])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_that_takes_lists_of_keys_counts_them(workers: int) -> None:
    keys = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    source = source_of(DataLoader(Lists(), batch_size=None, sampler=keys, num_workers=workers))
    again: Any = source.rebuild(3, counted=True)
    assert [batch.samples for batch in again] == [3, 3, 3, 1]
    assert again.dataset.name == "kept"
    assert [part.samples for part in source.cuttable(5, 1)[0].cut([2, 3])] == [2, 3]


def test_columns_of_a_data_sets_own_making_are_counted_by_their_shapes() -> None:
    rows: Any = {"x": torch.zeros(5, 2), "y": torch.zeros(5)}
    columns = Collating(lambda found: found, by_rows=True)(rows)
    assert columns.samples == 5


@pytest.mark.parametrize("name", CASES)
def test_the_parts_of_a_cuttable_batch_hold_its_samples(name: str) -> None:
    case = CASES[name]
    model, (whole,) = case.fresh(), source_of(case.loader(8)).cuttable(5, 1)
    parts = whole.cut([2, 3])
    assert (whole.samples, [part.samples for part in parts]) == (5, [2, 3])
    mean = sum(case.loss(model, part.batch).item() * part.samples for part in parts) / 5
    assert mean == pytest.approx(case.loss(model, whole.batch).item(), rel=1e-5)


def test_samples_are_fetched_once_for_the_whole_and_its_parts() -> None:
    class Noisy(Clicks):
        def __getitem__(self, index: int) -> Any:
            return {**super().__getitem__(index), "dense": torch.rand(13)}

    loader = DataLoader(Noisy(16), batch_size=4, collate_fn=collate_clicks)
    (whole,) = source_of(loader).cuttable(4, 1)
    parts = whole.cut([1, 1, 1, 1])
    assert torch.equal(torch.cat([part.batch["dense"] for part in parts]), whole.batch["dense"])


def test_an_even_batch_is_cut_where_it_lies_so_that_its_padding_stays() -> None:
    (whole,) = source_of(DataLoader(pairs(), batch_size=4)).cuttable(4, 1)
    parts = whole.cut([1, 3])
    assert parts[1].batch[0].data_ptr() == whole.batch[0][1:].data_ptr()
    assert Cuttable.of(whole) is whole


def test_alike_gives_each_batch_the_same_number_and_keeps_the_length() -> None:
    loader = EquallyCounted([torch.zeros(3), torch.zeros(5)], 4)
    assert [batch.samples for batch in loader] == [4, 4]
    assert len(loader) == 2
    with pytest.raises(TypeError):
        len(EquallyCounted(iter([]), 4))


@pytest.mark.parametrize(("name", "even"), [("graphs", False), ("dlrm", False), ("bags", False), ("detection", False)])
def test_shapes_of_ragged_batches_do_not_tell_their_samples(name: str, even: bool) -> None:
    assert source_of(CASES[name].loader(4)).even is even
    assert source_of(DataLoader(pairs(), batch_size=4)).even


def test_a_worst_case_function_of_ragged_batches_is_taken_at_its_word() -> None:
    case = CASES["graphs"]
    data = case.data()
    source = source_of(case.loader(4), worst_case=lambda size: case.collate([data[0]] * size))
    assert source.worst(3).graphs == 3


def test_a_batch_that_says_how_many_samples_it_has_is_collated_anew() -> None:
    loader = DataLoader(
        pairs(), batch_size=4, collate_fn=lambda rows: {"x": torch.stack([x for x, _ in rows]), "n": len(rows)}
    )
    source = source_of(loader)
    assert not source.even
    assert [part.batch["n"] for part in source.cuttable(5, 1)[0].cut([2, 3])] == [2, 3]


def test_samples_that_a_collate_function_leaves_out_do_not_count() -> None:
    def without_damaged(rows: list[Any]) -> torch.Tensor:
        return torch.stack([x for x, label in rows if label % 3])

    source = source_of(DataLoader(pairs(12), batch_size=4, collate_fn=without_damaged))
    assert [batch.samples for batch in source.rebuild(6, counted=True)] == [4, 4]


def test_the_parts_of_a_batch_count_what_a_collate_function_left_in_them() -> None:
    def without_damaged(rows: list[Any]) -> torch.Tensor:
        return torch.stack([x for x, label in rows if label % 3])

    source = source_of(DataLoader(pairs(12), batch_size=4, collate_fn=without_damaged))
    (batch,) = source.cuttable(12, 1)
    assert sorted(part.samples for part in batch.cut([3, 9])) == sorted(len(part.batch) for part in batch.cut([3, 9]))
    assert sum(part.samples for part in batch.cut([3, 9])) == 8


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("squeezed", [False, True])
def test_time_steps_that_come_first_are_not_counted_as_samples(steps: int, squeezed: bool) -> None:
    def steps_first(rows: list[Any]) -> Any:
        targets = torch.stack([y for _, y in rows])
        inputs = torch.stack([x.expand(steps) if squeezed else x.expand(steps, 2) for x, _ in rows], 1)
        return inputs, targets.expand(steps, -1)

    data: Any = [(torch.full((1,), float(at)), torch.tensor(at)) for at in range(80)]
    source = source_of(DataLoader(data, batch_size=64, collate_fn=steps_first))
    counted_again = source.rebuild(32, counted=True)
    assert [batch.samples for batch in counted_again] == [32, 32, 16]
    (step,) = StepLoader(counted_again, 3)
    assert step.weights == [0.4, 0.4, 0.2]
