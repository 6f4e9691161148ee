"""Recompute: the second run of a block in the backward pass: of all its operators, or of the cheap ones only.

Selective: the results of matrix products, convolutions and fused attention are kept, since they take few bytes for
their work. Norms, activations, elementwise operators and products of few terms are recomputed; so are batched products,
since one of queries and keys would keep the whole attention matrix.

This is torch's selective checkpointing, which torch.compile traces. Torch raises an error or computes a wrong gradient
in four cases. Attention with dropout is recomputed: a kept result draws no random numbers in the second run, so that
later dropout would differ. For the others, `selection_refusal` gives the reason:

* A kept result is changed in place (a convolution before `ReLU(inplace=True)`).
* A block's weights are used elsewhere too. Only one of the two runs then finds their casts in autocast's cache.
* The backward pass runs twice, for a gradient penalty: kept results are freed as they are used.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from autofit.core.errors import Untraceable
from autofit.core.wording import a_type
from autofit.strategies.base import Facts, Span, Watch
from autofit.torch_internals import BatchNorm, FakeTensor, InstanceNorm, NormBase, OpOverload, schema_of

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
_KEEPS_MOMENTUM = (BatchNorm.forward, nn.SyncBatchNorm.forward, InstanceNorm.forward)


class Recompute:
    """`torch.utils.checkpoint.checkpoint` for one block, in which the second run does not change buffers.

    For torch's batch and instance norms it suffices to set their momentum to 0. For other modules, the buffers that
    forward changes are found by observation: their values on entry are kept for the second run, which works on copies.
    The first call copies all buffers, later calls only those that have changed before. `selective` keeps the results of
    expensive operators.
    """

    def __init__(self, block: nn.Module, selective: bool = False) -> None:
        self.selective = selective
        self.label = type(block).__name__
        parts = list(block.modules())
        self.norms = [part for part in parts if isinstance(part, NormBase) and _keeps_momentum(part)]
        self.buffers = [(part, name) for part in parts if not _keeps_momentum(part) for name in part._buffers]
        self.changing: set[int] | None = None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Returns `function(*args)`, which is recomputed in the backward pass."""
        if torch.compiler.is_compiling():  # compiled code writes its buffers once anyway
            return self.compiled(function, *args)
        contexts = self._contexts if self.norms or self.buffers or self.selective else noop_context_fn
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts)

    def compiled(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns `function(*args, **kwargs)` while torch.compile traces it, which replays buffers and random state."""
        if self.selective:
            return checkpoint(function, *args, use_reentrant=False, context_fn=selective_contexts, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        kept: dict[int, torch.Tensor | None] = {}
        first, second = selective_contexts() if self.selective else (nullcontext(), nullcontext())
        return self._watched(kept, first), _OnKeptBuffers(self, kept, second)

    @contextmanager
    def _watched(self, kept: dict[int, torch.Tensor | None], first: AbstractContextManager[Any]) -> Iterator[None]:
        """Stores in `kept`, by position, the entry values of the buffers that change within the context `first`."""
        before = self._values()
        versions = [None if value is None else value._version for value in before]
        watched = range(len(before)) if self.changing is None else self.changing
        kept.update({position: _copy(before[position]) for position in watched})
        with first:
            yield
        for position, value in enumerate(self._values()):
            version = None if value is None else value._version
            rewritten = value is not before[position] or version != versions[position]
            if rewritten and position not in kept:
                self._warn_late(position)
                kept[position] = before[position]
            elif self.changing is None and not rewritten and self._is_constant(position, value, kept[position]):
                del kept[position]
        self.changing = set(kept)

    def _is_constant(self, position: int, value: torch.Tensor | None, entry: torch.Tensor | None) -> bool:
        # Values are compared because batch_norm and writes through `.data` do not increment the version. A norm may be
        # frozen at first.
        if value is None or entry is None:
            return True
        if isinstance(value, FakeTensor):  # without values: only the memory of the comparison is allocated
            torch.ne(value, entry).any()
            return True
        return not isinstance(self.buffers[position][0], NormBase) and torch.equal(value, entry)

    def _values(self) -> list[torch.Tensor | None]:
        return [part._buffers[name] for part, name in self.buffers]

    def _warn_late(self, position: int) -> None:
        part, name = self.buffers[position]
        warnings.warn(
            f"the buffer {name} of {a_type(part)} in a checkpointed {self.label} changed for the first time "
            "in this step, so this step's gradient was computed with its new value. It is exact from the next step on.",
            stacklevel=2,
        )


class _OnKeptBuffers(AbstractContextManager[None]):
    """Replaces the buffers of a block by copies of those in `kept` for the second run, and restores them on exit.

    It is a class because a graph that is kept for a second backward pass enters the same context again.
    """

    def __init__(
        self, recompute: Recompute, kept: dict[int, torch.Tensor | None], second: AbstractContextManager[Any]
    ) -> None:
        self.recompute, self.kept, self.second = recompute, kept, second
        self.undo = ExitStack()

    def __enter__(self) -> None:
        changes: list[tuple[nn.Module, str, Any]] = []
        changes += [(*self.recompute.buffers[position], value) for position, value in self.kept.items()]
        for norm in self.recompute.norms:
            changes += [(norm, "momentum", 0.0), (norm, "num_batches_tracked", norm.num_batches_tracked)]
        with ExitStack() as undo:
            for owner, name, value in changes:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, _copy(value) if isinstance(value, torch.Tensor) else value)
            undo.enter_context(self.second)
            self.undo = undo.pop_all()

    def __exit__(self, *exception: object) -> None:
        self.undo.close()


def _keeps_momentum(part: nn.Module) -> bool:
    return type(part).forward in _KEEPS_MOMENTUM


def _copy(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().clone()


def is_kept(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether selective recomputation keeps the results of an operator."""
    if (terms := _TERMS.get(func)) is not None:
        return bool(terms(args) >= FEWEST_TERMS)
    if not isinstance(func, OpOverload) or schema_of(func).name.removeprefix("aten::") not in _ATTENTION:
        return False
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dropout_p":
            return not (args[position] if position < len(args) else kwargs.get("dropout_p", argument.default_value))
    return True


def _policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_kept(func, args, kwargs) else CheckpointPolicy.PREFER_RECOMPUTE


def selective_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Returns the contexts of the first and the second run of one call of a block."""
    first, second = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]  # no types in torch
    return first, second


def selection_refusal(facts: Facts, blocks: Sequence[nn.Module], spans: Sequence[Span], checkpointed: Watch) -> str:
    """Returns why torch could not train this model with cheap operators recomputed only; "" if it can.

    The step is run once inside `checkpointed`, on a copy without data, if it can be. `spans` are the parts of one
    forward pass.
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
