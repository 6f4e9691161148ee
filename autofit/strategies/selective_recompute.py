"""Selective recomputation: keeps the results of expensive operators of a checkpointed block and recomputes the others.

Kept are products with a matrix, convolutions and fused attention. Their results take few bytes for their work. Norms,
activations, elementwise operators and products of few terms are recomputed; so are batched products, since one of
queries and keys would keep the whole attention matrix.

This is torch's selective checkpointing, which torch.compile traces. Torch raises an error or computes a wrong gradient
in four cases. Attention with dropout is recomputed: a kept result draws no random numbers in the second run, so that
later dropout would differ. For the others, `refusal` gives the reason:

* A kept result is changed in place (a convolution before `ReLU(inplace=True)`).
* A block's weights are used elsewhere too. Only one of the two runs then finds their casts in autocast's cache.
* The backward pass runs twice, for a gradient penalty: kept results are freed as they are used.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from autofit.core.errors import Untraceable
from autofit.strategies.base import Facts, Span, Watch
from autofit.torch_internals import OpOverload, schema_of

FEWEST_TERMS = 64
"""Minimum number of terms of each entry of a product that is kept. Depthwise convolutions have 9, a stem 27."""

aten = torch.ops.aten
_TERMS = {
    aten.mm.default: lambda args: args[0].shape[1],
    aten.addmm.default: lambda args: args[1].shape[1],
    aten.convolution.default: lambda args: args[1][0].numel(),
    aten._scaled_mm.default: lambda args: args[0].shape[1],
}
"""Number of terms of each entry of a product, by operator."""
_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_flash_attention_forward", "_efficient_attention_forward",
)  # fmt: skip
_REFUSED = {
    "has been mutated": "the model changes a kept result in place (as ReLU(inplace=True) after a convolution does), "
    "which torch's selective checkpointing does not support",
    "backward an extra time": "the step runs the backward pass of a block twice, and kept results serve only once",
}
"""Reasons by a part of the message of torch's error."""


def is_kept(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether the results of an operator are kept."""
    terms = _TERMS.get(func)
    if terms is not None:
        return bool(terms(args) >= FEWEST_TERMS)
    return _is_attention(func) and not _draws(func, args, kwargs)


def _is_attention(func: Any) -> bool:
    return isinstance(func, OpOverload) and schema_of(func).name.removeprefix("aten::") in _ATTENTION


def _draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether attention has dropout."""
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dropout_p":
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(value)
    return False


def _policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_kept(func, args, kwargs) else CheckpointPolicy.PREFER_RECOMPUTE


def selective_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Returns the contexts of the first and the second run of one call of a block."""
    first, second = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]  # no types in torch
    return first, second


def refusal(
    facts: Facts,
    blocks: Sequence[nn.Module],
    spans: Sequence[Span],
    checkpointed: Watch,
) -> str:
    """Returns why torch could not train this model with cheap operators recomputed only; "" if it can.

    Args:
        facts: facts about the workload. Its step is run once on a copy without data, if it can be.
        blocks: the blocks that would be checkpointed.
        spans: the parts of one forward pass.
        checkpointed: returns the context in which the blocks of a model are checkpointed so.
    """
    if reason := _shared(facts.model, blocks, spans):
        return f"{reason}, and under autocast the casts of its weights could then differ between the two runs"
    try:
        if facts.rehearse is not None:
            facts.rehearse(checkpointed)
    except Untraceable as error:
        # Any other error may come from running without data. A probe will show it if it does not.
        return next((reason for part, reason in _REFUSED.items() if part in str(error.__cause__)), "")
    return ""


def _shared(model: nn.Module, blocks: Sequence[nn.Module], spans: Sequence[Span]) -> str:
    """Returns which use of a block's weights is not the only one in a step; "" if none."""
    calls = Counter(span.block for span in spans if span.block is not None)
    if any(count > 1 for count in calls.values()):
        return "a block is called more than once in a step"
    inside = {part for block in blocks for part in block.modules()}
    users = Counter(
        id(weight)
        for owner in (*blocks, *(part for part in model.modules() if part not in inside))
        for weight in owner.parameters(recurse=owner in inside)
    )
    mine = {id(weight) for block in blocks for weight in block.parameters()}
    return "a block shares a weight with another module" if any(users[weight] > 1 for weight in mine) else ""
