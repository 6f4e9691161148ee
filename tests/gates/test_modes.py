"""Gradients are compared without dropout, and every module has its mode back."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.gates.modes import Modes, dropout_off, evaluating


def model() -> nn.Sequential:
    built = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LSTM(4, 4, 2, dropout=0.5))
    built[0].eval()  # the user's own choice
    return built


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (evaluating, [False, False, True, False, True]),
        (partial(evaluating, keep=()), [False, False, False, False, True]),
    ],
)
def test_modes_of_a_comparison_are_put_back(used: Modes, expected: list[bool]) -> None:
    """A recurrent layer keeps training, without its dropout: on CUDA it has no backward pass otherwise."""
    net = model()
    before = modes(net)
    with suppress(KeyError), used(net):
        assert modes(net) == expected
        assert net[3].dropout == 0.0
        raise KeyError
    assert modes(net) == before
    assert net[3].dropout == 0.5


def test_without_dropout_layers_and_functions_drop_nothing() -> None:
    net, ones = model(), torch.ones(1000)
    before = modes(net)
    with dropout_off(net):
        assert bool((F.dropout(ones, 0.5, training=True) == 1).all())
        assert bool((net[2](ones) == 1).all())
        assert net[3].dropout == 0.0
        query = torch.ones(1, 1, 50, 8)
        mixed = F.scaled_dot_product_attention(query, query, query, None, 0.9)
        assert torch.allclose(mixed, query)
        mixed = F.scaled_dot_product_attention(query, query, query, dropout_p=0.9)
        assert torch.allclose(mixed, query)
    assert modes(net) == before
    assert net[3].dropout == 0.5
    assert not bool((F.dropout(ones, 0.5, training=True) == 1).all())


class Dropping(nn.Module):
    """Drops by a function, as the attention of many language models does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.dropout(torch.softmax(x @ x.mT, -1), 0.5, training=self.training)
        return F.scaled_dot_product_attention(scores @ x, x, x, dropout_p=0.5)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backward", [torch.autograd.backward, torch.Tensor.backward])
def test_without_dropout_a_checkpointed_block_recomputes_what_it_computed(
    backward: Callable[..., None], reentrant: bool
) -> None:
    block, data = Dropping(), torch.randn(2, 8, 4)
    gradients = []
    for checkpointed in (False, True):
        x = data.clone().requires_grad_()
        with dropout_off(block):
            loss = (checkpoint(block, x, use_reentrant=reentrant) if checkpointed else block(x)).square().mean()
            backward(loss, torch.tensor(2.0))
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
