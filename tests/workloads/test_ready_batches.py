"""Ready batches are cut and joined where that is sound."""

from itertools import islice
from typing import Any

import pytest
import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.sources import source_of


def test_list_of_batches_is_regrouped() -> None:
    batches = [{"x": torch.arange(at, at + 4)} for at in range(0, 12, 4)] + [{"x": torch.tensor([12, 13])}]
    source = source_of(batches)
    assert (source.user_batch_size, source.length, source.varies) == (4, 14, False)
    assert [batch_size(batch) for batch in source.typical(6, 3)] == [6, 6, 6]
    assert source.worst(9)["x"].shape == (9,)
    again: Any = source.rebuild(5)
    assert [batch["x"].tolist() for batch in again] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13]]
    assert len(again) == 3
    assert len(list(again)) == 3
    assert source.typical(30, 1)[0]["x"].shape == (30,)
    assert "repeat samples" in source.notes[0]


def test_batches_padded_to_different_lengths_are_cut_and_never_joined() -> None:
    batches = [
        (torch.zeros(4, 5), torch.zeros(4)),
        (torch.zeros(4, 9), torch.zeros(4)),
        (torch.zeros(2, 30), torch.zeros(2)),
    ]
    source = source_of(batches)
    assert source.varies
    assert source.max_size == 4
    assert "cut but never joined" in source.notes[0]
    assert {batch[0].shape[1] for batch in source.typical(3, 6)} == {5, 9}
    assert source.worst(4)[0].shape == (4, 30)  # the longest, its rows repeated
    assert source.worst(1)[0].shape == (1, 30)
    again = source.rebuild(3)
    assert [tuple(batch[0].shape) for batch in again] == [(3, 5), (1, 5), (3, 9), (1, 9), (2, 30)]
    assert len(again) == 5  # type: ignore[arg-type]  # it is sized, since the list is
    for ask in (source.rebuild, source.worst):
        with pytest.raises(WorkloadError, match="expected at most 4"):
            ask(5)


def test_batches_with_a_tensor_that_is_no_row_per_sample_are_not_resized() -> None:
    graphs = [{"x": torch.zeros(6, 2), "y": torch.zeros(6), "edges": torch.zeros(2, at + 3)} for at in range(3)]
    source = source_of(graphs)
    assert not source.resizable
    assert "the batch size stays 6" in source.notes[0]
    assert [batch["x"].shape for batch in source.typical(6, 2)] == [(6, 2)] * 2
    assert source.worst(6)["edges"].shape == (2, 5)
    for ask in (source.rebuild, source.worst, lambda size: source.typical(size, 1)):
        with pytest.raises(WorkloadError, match="neither cut nor joined"):
            ask(3)


def test_a_tensor_that_is_the_same_in_all_batches_is_shared() -> None:
    weights = torch.ones(9)
    source = source_of([{"x": torch.zeros(4, 2), "y": torch.zeros(4), "weights": weights} for _ in range(3)])
    assert source.resizable
    batch = source.typical(7, 1)[0]
    assert (batch["x"].shape[0], batch["weights"].shape[0]) == (7, 9)


def test_worst_case_of_ready_batches_is_a_batch() -> None:
    source = source_of([torch.zeros(4, 2)], worst_case=torch.ones(3, 50))
    assert source.worst(7).shape == (7, 50)
    assert source.worst(2).shape == (2, 50)


@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 9, 30)])
def test_fresh_batches_come_in_another_order_for_each_draw(lengths: tuple[int, ...]) -> None:
    batches = [torch.full((4, length), at) for at, length in enumerate(lengths * 4)]
    source = source_of(batches)
    assert source.distinct == 12
    drawn = [[int(batch[0, 0]) for batch in islice(source.fresh(4, draw), 12)] for draw in (1, 2, 1)]
    assert sorted(drawn[0]) == list(range(12))
    assert drawn[0] == drawn[2] != drawn[1]
    next(source.fresh(4, 1)).zero_()
    assert [int(batch[0, 0]) for batch in batches] == list(range(12))
