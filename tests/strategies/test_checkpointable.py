"""Checkpointable: which parts are found, and what a checkpointed block runs."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.strategies.checkpointable import Checkpointable, is_checkpointed
from tests.strategies.repeated_blocks import Gpt, applied, tokens


def test_only_blocks_of_an_open_step_are_checkpointed() -> None:
    model = Gpt()
    with applied(model, 2):
        assert [is_checkpointed(block) for block in model.blocks] == [True, True, False, False]
    assert not any(map(is_checkpointed, model.modules()))


def test_blocks_and_counts_of_a_model() -> None:
    model = Gpt(3)
    target = Checkpointable(model)
    assert (target.owners, target.blocks, target.counts) == ((), tuple(model.blocks), (0, 1, 2, 3))
    assert Checkpointable(nn.Linear(2, 2)).counts == (0,)


def test_the_users_own_forward_is_used_and_put_back() -> None:
    model = Gpt()
    calls: list[int] = []
    block = model.blocks[0]
    original = block.forward

    def own(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    block.forward = own
    with applied(model, 4):
        model(tokens()).sum().backward()
    assert len(calls) == 2
    assert vars(block)["forward"] is own
    assert "forward" not in vars(model.blocks[1])


def reloaded(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, reloaded], ids=["copied", "pickled"])
def test_a_copy_made_meanwhile_runs_its_own_weights(duplicate: Callable[[Gpt], Gpt]) -> None:
    model = Gpt(p=0.0)
    with applied(model, 4):
        twin = duplicate(model)
        expected = model(tokens())
        nn.init.zeros_(model.get_parameter("blocks.0.down.weight"))
        torch.testing.assert_close(twin(tokens()), expected)
        assert vars(twin.blocks[0])["forward"].block is twin.blocks[0]
