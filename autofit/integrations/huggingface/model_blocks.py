"""The blocks of a transformers model that can be checkpointed one by one."""

import warnings
from typing import Any

from torch import nn

from autofit.core.block_order import read_order
from autofit.core.errors import UsageError
from autofit.core.plan import Plan

BLOCKS, ORDER = "checkpointed_blocks", "checkpoint_order"
SWITCH = "gradient_checkpointing"
"""Attribute by which a block is checkpointed."""


def checkpoint_some(model: nn.Module, plan: Plan) -> None:
    """Switches checkpointing on in the blocks that the plan names, and off in all others.

    Raises:
        UsageError: the model does not have the blocks of the plan.
    """
    blocks, order = _blocks(model), read_order(plan.values.get(ORDER, ""))
    count = plan.values[BLOCKS]
    if type(count) is not int or order is None or count > len(blocks) or (order and len(order) != len(blocks)):
        raise UsageError(
            f"found a model with {len(blocks)} blocks that can be checkpointed one by one, and the plan has "
            f"{BLOCKS}={count}{f' in the order {plan.values[ORDER]}' if order else ''}. Pass the model that was tuned."
        )
    _enable(model)
    chosen = set((order or tuple(range(len(blocks))))[:count])
    for place, block in enumerate(blocks):
        setattr(block, SWITCH, place in chosen)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Returns the blocks, in module order. The class of which they are exists in transformers 4.53 and later."""
    return [
        module
        for module in model.modules()
        if any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
    ]


def _enable(model: Any) -> None:
    """Calls the model's method. The newer name is preferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5.23 renamed it
        method = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        method({"use_reentrant": False})
