"""The algebra of batches: every cut and join keeps the samples."""

from collections import namedtuple
from typing import Any

import pytest
import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, concat, describe, non_batch_tensors, regroup, split
from autofit.workloads.tree import map_tensors, tensors
from tests.workloads.structures import STRUCTURES, Attributes, rows


@pytest.mark.parametrize("name", STRUCTURES)
def test_split_and_concat_are_inverse(name: str) -> None:
    batch = STRUCTURES[name]
    pieces = split(batch, [1, 3])
    assert [batch_size(piece) for piece in pieces] == [1, 3]
    joined = concat(pieces)
    assert type(joined) is type(batch)
    for old, new in zip(tensors(batch), tensors(joined), strict=True):
        assert torch.equal(old, new)


def test_attributes_of_a_dict_that_is_its_own_namespace_go_with_its_keys() -> None:
    batch: Any = Attributes(x=torch.ones(4, 2))
    part = split(batch, [1, 3])[0]
    assert part.x is part["x"]
    assert part.x.shape == (1, 2)
    assert map_tensors(batch, lambda tensor: tensor.to("meta")).x.is_meta
    assert batch.x is batch["x"]
    assert batch.x.shape == (4, 2)


def test_transformers_batch_encoding() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.ones(4, 7, dtype=torch.long)})
    piece = split(batch, [3, 1])[0]
    assert type(piece) is transformers.BatchEncoding
    assert piece.input_ids.shape == (3, 7)
    assert batch.input_ids.shape == (4, 7)


def test_batch_size_is_the_most_common_then_the_first() -> None:
    assert batch_size(rows(5)) == 5
    assert batch_size({"weights": rows(9), "x": rows(4), "y": torch.arange(4)}) == 4
    assert batch_size({"scalar": torch.tensor(1.0), "x": rows(4), "weights": rows(9)}) == 4
    assert batch_size({"weights": rows(9), "inner": [rows(4), rows(4)]}) == 4


@pytest.mark.parametrize("batch", [{}, "text", {"a": 1}, [torch.tensor(1.0)], None])
def test_batch_size_without_a_batch_dimension_is_an_error(batch: Any) -> None:
    with pytest.raises(WorkloadError, match="without a tensor that has a batch dimension"):
        batch_size(batch)


def test_boxes_of_each_image_do_not_vote_and_are_cut_as_a_list() -> None:
    boxes = [{"boxes": rows(2, 4), "labels": torch.arange(2)} for _ in range(5)]
    batch = (torch.zeros(5, 3, 8, 8), boxes)
    assert batch_size(batch) == 5
    first, second = split(batch, [2, 3])
    assert first[0].shape[0] == 2
    assert [len(first[1]), len(second[1])] == [2, 3]
    assert not non_batch_tensors(batch)


def test_lists_of_images_and_targets_count_by_their_length() -> None:
    images = tuple(torch.zeros(3, 8, 8 + at) for at in range(4))
    targets = tuple({"boxes": rows(at + 1, 4)} for at in range(4))
    assert batch_size((images, targets)) == 4
    assert batch_size([{"image": image, **target} for image, target in zip(images, targets, strict=True)]) == 4
    pieces = split((images, targets), [3, 1])
    assert [len(piece[0]) for piece in pieces] == [3, 1]
    assert len(concat(pieces)[1]) == 4


def test_split_cuts_names_and_arrays_and_leaves_the_rest() -> None:
    numpy = pytest.importorskip("numpy")
    batch = {"x": rows(3), "names": ["a", "b", "c"], "ids": numpy.arange(3), "weights": rows(7), "scale": 2.0}
    first, second = split(batch, [2, 1])
    assert first["names"] == ["a", "b"]
    assert second["names"] == ["c"]
    assert second["ids"].tolist() == [2]
    assert first["weights"] is batch["weights"]
    assert second["scale"] == 2.0
    assert concat([first, second])["ids"].tolist() == [0, 1, 2]


def test_a_pair_in_a_batch_of_two_is_not_a_list_of_samples() -> None:
    first, second = split([rows(2), torch.arange(2)], [1, 1])
    assert first[0].shape == (1, 3)
    assert second[1].tolist() == [1]


def test_split_gives_views() -> None:
    batch = rows()
    split(batch, [2, 2])[1][0, 0] = 99.0
    assert batch[2, 0] == 99.0


@pytest.mark.parametrize("sizes", [[2, 1], [4, 0], [], [5]])
def test_split_sizes_must_add_up(sizes: list[int]) -> None:
    with pytest.raises(WorkloadError, match="for a batch of 4 samples"):
        split(rows(), sizes)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (rows(2, 3), rows(2, 4)),
        (rows(2), rows(2).double()),
        ({"x": rows(2)}, {"x": rows(2), "y": rows(2)}),
        ({"x": rows(2)}, {"x": "text", "y": rows(2)}),
        ({"x": rows(2), "w": torch.zeros(5)}, {"x": rows(2), "w": torch.ones(5)}),
    ],
)
def test_batches_that_differ_are_not_joined(one: Any, other: Any) -> None:
    with pytest.raises(WorkloadError, match="differ at"):
        concat([one, other])


def test_regroup_keeps_the_order_and_ends_with_the_remainder() -> None:
    batches = [{"x": torch.arange(at, at + 3)} for at in range(0, 12, 3)]
    assert [b["x"].tolist() for b in regroup(batches, 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert [b["x"].tolist() for b in regroup(batches, 2, join=False)][:3] == [[0, 1], [2], [3, 4]]
    assert [len(b["x"]) for b in regroup(batches, 1)] == [1] * 12
    assert [len(b["x"]) for b in regroup(batches, 6)] == [6, 6]


def test_describe_marks_batch_and_varying_dimensions() -> None:
    one = {"ids": torch.zeros(2, 7, dtype=torch.long), "pixels": torch.zeros(2, 3, 8)}
    two = {"ids": torch.zeros(5, 9, dtype=torch.long), "pixels": torch.zeros(5, 3, 8)}
    assert describe([one, two]) == "ids int64[B, *]; pixels float32[B, 3, 8]"
    assert describe([rows(4)]) == "float32[B, 3]"
    assert "names[B] str" in describe([{"x": rows(3), "names": ["a", "b", "c"]}])


def test_a_named_tuple_of_two_is_no_list_of_samples() -> None:
    kind = namedtuple("kind", "a b")  # the untyped form, which users have
    first, _ = split(kind(rows(2), rows(2, 5)), [1, 1])
    assert type(first) is kind
    assert first.b.shape == (1, 5)
