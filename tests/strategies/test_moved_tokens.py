"""Hidden states are moved to other rows, and gradients back, without a place being counted twice."""

import torch

from autofit.strategies.moved_tokens import moved

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
