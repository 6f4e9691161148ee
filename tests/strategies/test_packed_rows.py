"""Samples are packed into few rows, and each token is found again in its own place."""

import random

import pytest
import torch

from autofit.strategies.packed_rows import NOTHING, PackedRows, moved, packed_rows, rows_of, texts_of

THERE = torch.tensor([[4, 0], [-1, 2]])
BACK = torch.tensor([[1, -1], [3, -1], [0, -1]])


def test_tokens_are_moved_and_places_without_one_are_zero() -> None:
    hidden = torch.arange(12.0).reshape(3, 2, 2)
    assert moved(hidden, THERE, BACK).tolist() == [[[8, 9], [0, 1]], [[0, 0], [4, 5]]]


def test_the_gradient_moves_back() -> None:
    hidden = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: moved(values, THERE, BACK), (hidden,))
    assert torch.autograd.gradgradcheck(lambda values: moved(values, THERE, BACK) ** 2, (hidden,))


def test_moving_there_and_back_keeps_what_was_moved() -> None:
    hidden = torch.randn(3, 2, 4)
    again = moved(moved(hidden, THERE, BACK), BACK, THERE)
    kept = BACK >= 0
    assert torch.equal(again[kept], hidden[kept])
    assert not again[~kept].any()


NONE = [NOTHING]


def mask_of(lengths: list[int], width: int, left: bool = False) -> torch.Tensor:
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, width - length if left else 0 : width if left else length] = 1
    return mask


def packed(mask: torch.Tensor) -> PackedRows:
    found = packed_rows(mask)
    assert found is not None
    return found


def test_short_samples_share_a_row() -> None:
    found = packed(mask_of([5, 2, 2, 1], 5))
    assert found.count == 2
    assert found.sources.tolist() == [[0, 1, 2, 3, 4], [5, 6, 10, 11, 15]]
    assert found.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]]
    assert found.places.tolist() == [[0, 1, 2, 3, 4], [5, 6, *NONE * 3], [7, 8, *NONE * 3], [9, *NONE * 4]]


def test_what_is_left_of_a_row_counts_as_another_sample() -> None:
    found = packed(mask_of([6, 2, 2], 6))
    assert found.positions.tolist()[1] == [0, 1, 0, 1, 0, 1]
    assert found.sources.tolist()[1] == [6, 7, 12, 13, *NONE * 2]


@pytest.mark.parametrize("lengths", [[4, 4, 4], [4, 3, 3], [5], [3, 3], []])
def test_samples_that_need_a_row_each_are_not_packed(lengths: list[int]) -> None:
    assert packed_rows(mask_of(lengths, max(lengths, default=2))) is None


def test_a_sample_with_a_hole_is_not_packed() -> None:
    mask = mask_of([6, 3, 1], 6)
    mask[1, 1] = 0
    assert packed_rows(mask) is None


def test_samples_whose_positions_continue_each_other_are_not_packed() -> None:
    assert packed_rows(torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])) is None
    assert packed_rows(torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]])) is not None


def test_masks_of_any_type_are_read_alike() -> None:
    mask = mask_of([6, 2, 2], 6)
    for each in (mask.bool(), mask.float(), mask * 7):
        assert torch.equal(packed(each).places, packed(mask).places)


def test_a_sample_without_tokens_prevents_packing() -> None:
    assert packed_rows(mask_of([6, 2, 2, 0], 6)) is None


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_each_token_has_its_own_place_and_its_own_position(seed: int, left: bool) -> None:
    chance = random.Random(seed)
    width = chance.randrange(8, 40)
    lengths = [width, *(chance.randrange(1, width // 2) for _ in range(chance.randrange(3, 30)))]
    chance.shuffle(lengths)
    mask = mask_of(lengths, width, left)
    found = packed(mask)
    assert -(-sum(lengths) // width) <= found.count < len(lengths)
    flat = torch.arange(mask.numel()).reshape(mask.shape)
    assert torch.equal(found.sources.flatten()[found.places[mask != 0]], flat[mask != 0])
    assert (found.places[mask == 0] == NOTHING).all()
    assert int((found.sources != NOTHING).sum()) == sum(lengths)
    positions = found.positions.flatten()[found.places]
    assert torch.equal(positions[mask != 0], torch.arange(width).expand_as(mask)[mask != 0])
    assert len(set(found.places[mask != 0].tolist())) == sum(lengths)
    borders = (found.positions.diff(dim=1) != 1).sum(1)
    row_of = found.places // width
    for row in range(found.count):
        samples = {at for at, length in enumerate(lengths) if length and row_of[at, mask[at] != 0][0] == row}
        rest = width - sum(lengths[at] for at in samples)
        assert rest >= 0
        assert borders[row] == len(samples) - 1 + bool(rest)


def test_rows_are_counted_where_a_batch_names_its_tokens_and_their_mask() -> None:
    text = {"input_ids": torch.ones(4, 5), "attention_mask": mask_of([5, 2, 2, 1], 5)}
    whole = {"input_ids": torch.ones(4, 5), "attention_mask": torch.ones(4, 5)}
    assert rows_of(text) == (2, 4)
    assert rows_of({"a": text, "b": whole}) == rows_of({"a": whole, "b": text}) == (6, 8)
    assert rows_of({f"{side}_{name}": tensor for side in "ab" for name, tensor in text.items()}) == (4, 8)
    assert rows_of(tuple(text.values())) == (0, 0)
    assert texts_of({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 4)}) == []
