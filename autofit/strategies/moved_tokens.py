"""Moved tokens: hidden states of tokens in other rows, with a backward pass that moves the gradients back.

Plain indexing would add up the gradients of all places with the same index: on CUDA one after the other, and there are
as many as there is padding.
"""

from typing import Any

import torch


def moved(hidden: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """Returns hidden states in other rows, [*there.shape, width]; 0 where no token is.

    Args:
        hidden: [rows, tokens, width].
        there: for each place of the result, the place of its token in the flattened rows of `hidden`; negative if it
            has none. No place is in it twice.
        back: the same from the result to `hidden`, [rows, tokens].
    """
    found: torch.Tensor = _Move.apply(hidden.flatten(0, 1), there.flatten(), back.flatten())  # type: ignore[no-untyped-call]
    return found.reshape(*there.shape, -1)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(there, back)
        found = values.index_select(0, there.clamp(min=0))
        return found.masked_fill_((there < 0).unsqueeze(1), 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        there, back = ctx.saved_tensors
        return _Move.apply(gradients[0], back, there), None, None  # type: ignore[no-untyped-call]
