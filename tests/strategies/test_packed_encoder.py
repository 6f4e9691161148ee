"""The layers of an encoder get packed hidden states and a mask by samples, or are not packed."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.strategies.blocks import outermost
from autofit.strategies.packable_models import encoder_lack, is_stack, pack_encoder

STACK_LENGTHS = [5, 2, 2]
SEEN = torch.tensor([[token < length for token in range(5)] for length in STACK_LENGTHS])


class Stack(nn.Module):
    """Layers as those of an encoder of `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **others: Any) -> torch.Tensor:
        output: torch.Tensor = self.layer[0](hidden_states)
        return output


class Encoder(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Stack() for _ in range(count))


def hidden() -> torch.Tensor:
    return torch.arange(3 * 5 * 2.0).reshape(3, 5, 2)


def pack(mask: Any, **others: Any) -> Any:
    stack = Stack()
    return pack_encoder(stack, stack.forward, (hidden(), mask), others)


@pytest.mark.parametrize("queries", [1, 5])
def test_hidden_states_are_packed_and_samples_see_themselves_alone(queries: int) -> None:
    found = pack(SEEN[:, None, None].expand(3, 1, queries, 5))
    arguments = found.arguments
    assert arguments["hidden_states"].shape == (2, 5, 2)
    assert torch.equal(arguments["hidden_states"].flatten(0, 1)[found.places[SEEN]], hidden()[SEEN])
    sample = torch.tensor([0, 0, 1, 1, 2])
    second = sample[:, None] == sample
    assert torch.equal(arguments["attention_mask"], torch.stack([torch.ones(5, 5).bool(), second])[:, None])


def test_an_additive_mask_stays_additive() -> None:
    least = torch.finfo(torch.float32).min
    found = pack(torch.zeros(3, 1, 5, 5).masked_fill(~SEEN[:, None, None], least))
    mask = found.arguments["attention_mask"]
    assert mask.dtype == torch.float32
    assert mask[1, 0, 0].tolist() == [0, 0, least, least, least]


@pytest.mark.parametrize(
    "mask",
    [
        None,
        SEEN,
        torch.ones(3, 1, 1, 5, dtype=torch.bool),
        torch.ones(3, 2, 5, 5, dtype=torch.bool),
        SEEN[:, None, None] & torch.ones(5, 5, dtype=torch.bool).tril(),
    ],
    ids=["none", "of tokens", "no padding", "of heads", "causal"],
)
def test_other_masks_are_not_packed(mask: torch.Tensor | None) -> None:
    assert pack(mask) is None


def test_a_call_with_other_tensors_is_not_packed() -> None:
    assert pack(SEEN[:, None, None], encoder_hidden_states=torch.zeros(3, 2, 2)) is None


def test_an_encoder_has_one_stack() -> None:
    assert [type(stack) for stack in outermost(Encoder(1), is_stack)] == [Stack]
    assert encoder_lack(Encoder(1)) is None
    assert (
        encoder_lack(Encoder(2)) == "Encoder has no single stack of layers that takes hidden_states and attention_mask"
    )
    assert "no single stack" in str(encoder_lack(nn.Linear(2, 2)))
