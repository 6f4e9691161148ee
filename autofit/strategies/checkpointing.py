"""Activation checkpointing: keeps only the inputs of a block and recomputes the block in the backward pass."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import find_blocks
from autofit.strategies.recompute import Recompute
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

CHECKPOINTED_BLOCKS = "checkpointed_blocks"

_ABSENT = object()


class Checkpointing(Strategy):
    """Checkpoints the first k of the model's n repeated blocks, which trades time for memory.

    Gradients are the same as without checkpointing, up to rounding: torch's random state is replayed, and buffers
    (BatchNorm statistics, spectral norm vectors) are updated once. Other state of a block is not replayed: attributes,
    Python's and numpy's random state, parameters that forward writes.

    If the model has its own checkpointing method (transformers), that method is used, because it knows what else must
    change, such as the key-value cache.
    """

    name = "checkpointing"
    about = "keeps only the inputs of some blocks and recomputes the blocks in backward"
    cost = "up to a third more time"
    effect = "exact"
    phase = Phase.MODULES
    owns = (CHECKPOINTED_BLOCKS,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `checkpointed_blocks`: 0, or a quarter, half, three quarters or all of the blocks."""
        if not facts.training:
            return self.refuse("inference has no backward pass and keeps no activations that could be freed")
        reason = _refusal(facts.model)
        if reason is not None:
            return self.refuse(reason)
        counts = _Checkpointable(facts.model).counts
        if len(counts) == 1:
            return self.refuse(
                "found no repeated blocks; expected two or more modules of one class under one parent that have "
                "children and parameters"
            )
        most = counts[-1]
        values = tuple(sorted({(most * quarters + 2) // 4 for quarters in range(5)} & set(counts)))
        about = f"number of blocks, of {most} and from the first on, that are recomputed in backward to save memory"
        # A checkpointed block runs forward twice, and a forward pass is about a third of forward and backward.
        expected = tuple(1 / (1 + count / (3 * most)) for count in values)
        # Only the input of a checkpointed block is kept. The rest of the model keeps its activations.
        growth = tuple(1 - 0.75 * count / most for count in values)
        knob = Knob(
            name=CHECKPOINTED_BLOCKS,
            values=values,
            default=0,
            about=about,
            expected=expected,
            growth=growth,
            trades_memory=Trade(technique=self.name, counted="blocks to checkpoint", between=len(counts) > 2),
        )
        return Offer(knobs=(knob,))

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Checkpoints the first blocks of `draft.model`. Accepts any number up to the number of blocks.

        Raises:
            SpaceError: the model has fewer blocks, can only checkpoint all of them, checkpoints already, or is
                compiled.
        """
        count = plan.values.get(CHECKPOINTED_BLOCKS, 0)
        if type(count) is int and count == 0:
            return nullcontext()
        reason = _refusal(draft.model)
        if reason is not None:
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"0, since {reason}")
        target = _Checkpointable(draft.model)
        if type(count) is not int or count not in target.counts:
            raise unknown_value(CHECKPOINTED_BLOCKS, count, f"one of {', '.join(map(str, target.counts))}")
        return target.checkpointed(count)


class _Checkpointable:
    """The parts of a model that can be checkpointed.

    Attributes:
        owners: outermost modules with their own checkpointing method; () if there are none.
        blocks: blocks that can be switched individually, in module order.
        counts: numbers of blocks that may be checkpointed, from 0 up.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owners = tuple(_owners(model))
        self.counts: tuple[int, ...]
        if not self.owners:
            self.blocks = find_blocks(model)
        else:
            self.blocks = tuple(module for owner in self.owners for module in owner.modules() if _has_own_flag(module))
        if self.owners and not self.blocks:
            self.counts = (0, len(find_blocks(model)) or 1)
        else:
            self.counts = tuple(range(len(self.blocks) + 1))

    def checkpointed(self, count: int) -> AbstractContextManager[None]:
        """Returns a context in which the first `count` blocks are checkpointed."""
        if self.owners:
            return _by_own_method(self.owners, self.blocks, count)
        return _by_forward(self.blocks[:count])


class CheckpointedForward:
    """A forward that checkpoints its block in training, and calls it directly in eval mode or without gradients.

    It holds the block and not its bound method, so that a copied or pickled model calls its own block.
    """

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.own_forward: Callable[..., Any] | None = vars(block).get("forward")
        self.recompute = Recompute(block)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the block. Arguments may have any type; tensors in them are kept for the backward pass."""
        if not (self.block.training and torch.is_grad_enabled()):
            return self._original(*args, **kwargs)
        if torch.compiler.is_compiling():  # the compiler replays arguments, buffers and random state itself
            return checkpoint(self._original, *args, use_reentrant=False, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        # The first run gets the caller's lists and dicts, which may change later. The second run gets them as they
        # were on entry.
        first_call = [(args, kwargs)]

        def run(*kept: Any) -> Any:
            positional, named = first_call.pop() if first_call else pytree.tree_unflatten(list(kept), structure)
            return self._original(*positional, **named)

        return self.recompute(run, *leaves)

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        if self.own_forward is not None:
            return self.own_forward(*args, **kwargs)
        return type(self.block).forward(self.block, *args, **kwargs)


@contextmanager
def _by_forward(blocks: tuple[nn.Module, ...]) -> Iterator[None]:
    """Replaces the forward of each block, below its hooks, so that hooks run once."""
    with Undo() as undo:
        for block in blocks:
            undo.callback(_put, vars(block), "forward", vars(block).get("forward", _ABSENT))
            vars(block)["forward"] = CheckpointedForward(block)
        yield


@contextmanager
def _by_own_method(owners: tuple[nn.Module, ...], layers: tuple[nn.Module, ...], count: int) -> Iterator[None]:
    """Enables the owners' checkpointing, then disables it for all layers after the first `count`."""
    before = [(attributes, dict(attributes)) for owner in owners for attributes in _attributes(owner)]
    changed: list[tuple[dict[Any, Any], Any, Any]] = []
    with Undo() as undo:
        # Runs last, because the models' own `disable` leaves hooks and attributes behind.
        undo.callback(_put_all, changed)
        try:
            for owner in owners:
                undo.callback(_switch, owner, "disable")
                _switch(owner, "enable", {"use_reentrant": False})
            for position, layer in enumerate(layers):
                flags = {
                    "gradient_checkpointing": position < count,
                    "_gradient_checkpointing_func": Recompute(layer),
                }
                vars(layer).update(flags)
        finally:
            changed += _differences(before)
        yield


def _differences(
    before: list[tuple[dict[Any, Any], dict[Any, Any]]],
) -> Iterator[tuple[dict[Any, Any], Any, Any]]:
    """Yields each entry that is no longer the same object, with its previous value."""
    for attributes, earlier in before:
        for key in attributes.keys() | earlier.keys():
            if attributes.get(key, _ABSENT) is not earlier.get(key, _ABSENT):
                yield attributes, key, earlier.get(key, _ABSENT)


def _attributes(owner: nn.Module) -> Iterator[dict[Any, Any]]:
    """Yields the dictionaries that enabling may change: attributes, hooks, the configuration."""
    for module in owner.modules():
        yield vars(module)
        yield from (value for key, value in vars(module).items() if isinstance(value, dict) and "hooks" in key)
        config = vars(module).get("config")
        if hasattr(config, "__dict__"):
            yield vars(config)


def _put(attributes: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _ABSENT:
        attributes.pop(key, None)
    else:
        attributes[key] = value


def _put_all(entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
    for attributes, key, value in entries:
        _put(attributes, key, value)


def _switch(owner: nn.Module, way: str, *arguments: Any) -> None:
    """Calls the owner's method to "enable" or "disable" checkpointing. The newer name is preferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5.23 renamed it; 4.x has only the older name
        method = getattr(owner, f"activation_checkpointing_{way}", None)
        (method or getattr(owner, f"gradient_checkpointing_{way}"))(*arguments)


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost modules that have their own checkpointing method."""
    has_method = callable(getattr(module, "gradient_checkpointing_enable", None))
    if has_method and getattr(module, "supports_gradient_checkpointing", True):
        yield module
        return
    for child in module.children():
        yield from _owners(child)


def _has_own_flag(module: nn.Module) -> bool:
    # By name: the class exists in transformers >= 4.53 only, and transformers need not be installed.
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def _refusal(model: nn.Module) -> str | None:
    """Returns why the model's blocks must not be changed, or None."""
    if any(map(_checkpoints, model.modules())):
        return "the model already uses checkpointing, which is not changed"
    if any(map(_is_compiled, model.modules())):
        return "the model is compiled, and torch.compile cannot trace this strategy; pass the model uncompiled"
    return None


def _checkpoints(module: nn.Module) -> bool:
    return (
        getattr(module, "gradient_checkpointing", False) is True  # transformers, diffusers
        or getattr(module, "grad_checkpointing", False) is True  # timm
        or type(module).__name__ == "CheckpointWrapper"  # torch.distributed
        or isinstance(vars(module).get("forward"), CheckpointedForward)
    )


def _is_compiled(module: nn.Module) -> bool:
    # By name: importing torch._dynamo takes seconds.
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
