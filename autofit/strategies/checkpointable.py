"""Checkpointable: the parts of a model that can be checkpointed, and how each is checkpointed and put back."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from autofit.strategies.blocks import find_blocks
from autofit.strategies.recompute import Recompute
from autofit.strategies.undo import ABSENT, Undo, put
from autofit.torch_internals import pytree


class Checkpointable:
    """The parts of a model that can be checkpointed.

    Attributes:
        owners: outermost modules with their own checkpointing method; () if there are none.
        blocks: blocks that can be switched individually, in module order.
        counts: numbers of blocks that may be checkpointed, from 0 up.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owners = tuple(owners_of(model))
        self.counts: tuple[int, ...]
        if not self.owners:
            self.blocks = find_blocks(model)
        else:
            self.blocks = tuple(module for owner in self.owners for module in owner.modules() if _has_own_flag(module))
        if self.owners and not self.blocks:
            self.counts = (0, len(find_blocks(model)) or 1)
        else:
            self.counts = tuple(range(len(self.blocks) + 1))

    def checkpointed(self, chosen: Collection[int], selective: bool = False) -> AbstractContextManager[None]:
        """Returns a context in which the blocks with these numbers are checkpointed.

        Args:
            chosen: numbers of blocks. If the blocks cannot be switched individually, all are checkpointed.
            selective: whether results of expensive operators are kept. See `selective_recompute`.
        """
        if self.owners:
            layers = [(block, at in chosen) for at, block in enumerate(self.blocks)]
            return _by_own_method(self.owners, layers, selective)
        return _by_forward([self.blocks[at] for at in sorted(chosen)], selective)


class CheckpointedForward:
    """A forward that checkpoints its block in training, and calls it directly in eval mode or without gradients.

    It holds the block and not its bound method, so that a copied or pickled model calls its own block.
    """

    def __init__(self, block: nn.Module, selective: bool = False) -> None:
        self.block = block
        self.own_forward: Callable[..., Any] | None = vars(block).get("forward")
        self.recompute = Recompute(block, selective)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the block. Arguments may have any type; tensors in them are kept for the backward pass."""
        if not (self.block.training and torch.is_grad_enabled()):
            return self._original(*args, **kwargs)
        if torch.compiler.is_compiling():
            return self.recompute.compiled(self._original, *args, **kwargs)
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


def is_checkpointed(module: nn.Module) -> bool:
    """Returns whether a step that is still open checkpoints this module."""
    held = vars(module)
    return isinstance(held.get("forward"), CheckpointedForward) or (
        isinstance(held.get("_gradient_checkpointing_func"), Recompute)
    )


@contextmanager
def _by_forward(blocks: Sequence[nn.Module], selective: bool) -> Iterator[None]:
    """Replaces the forward of each block, below its hooks, so that hooks run once."""
    with Undo() as undo:
        for block in blocks:
            undo.replace(vars(block), "forward", CheckpointedForward(block, selective))
        yield


@contextmanager
def _by_own_method(
    owners: Sequence[nn.Module], layers: Sequence[tuple[nn.Module, bool]], selective: bool
) -> Iterator[None]:
    """Enables the owners' checkpointing, then disables it for the layers that are not chosen."""
    before = [(attributes, dict(attributes)) for owner in owners for attributes in _attributes(owner)]
    changed: list[tuple[dict[Any, Any], Any, Any]] = []
    with Undo() as undo:
        # Runs last, because the models' own `disable` leaves hooks and attributes behind.
        undo.callback(_put_all, changed)
        try:
            for owner in owners:
                undo.callback(_switch, owner, "disable")
                _switch(owner, "enable", {"use_reentrant": False})
            for layer, is_chosen in layers:
                flags = {
                    "gradient_checkpointing": is_chosen,
                    "_gradient_checkpointing_func": Recompute(layer, selective),
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
            if attributes.get(key, ABSENT) is not earlier.get(key, ABSENT):
                yield attributes, key, earlier.get(key, ABSENT)


def _attributes(owner: nn.Module) -> Iterator[dict[Any, Any]]:
    """Yields the dictionaries that enabling may change: attributes, hooks, the configuration."""
    for module in owner.modules():
        yield vars(module)
        yield from (value for key, value in vars(module).items() if isinstance(value, dict) and "hooks" in key)
        config = vars(module).get("config")
        if hasattr(config, "__dict__"):
            yield vars(config)


def _put_all(entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
    for attributes, key, value in entries:
        put(attributes, key, value)


def _switch(owner: nn.Module, way: str, *arguments: Any) -> None:
    """Calls the owner's method to "enable" or "disable" checkpointing. The newer name is preferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5.23 renamed it; 4.x has only the older name
        method = getattr(owner, f"activation_checkpointing_{way}", None)
        (method or getattr(owner, f"gradient_checkpointing_{way}"))(*arguments)


def owners_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost modules that have their own checkpointing method."""
    has_method = callable(getattr(module, "gradient_checkpointing_enable", None))
    if has_method and getattr(module, "supports_gradient_checkpointing", True):
        yield module
        return
    for child in module.children():
        yield from owners_of(child)


def _has_own_flag(module: nn.Module) -> bool:
    # By name: the class exists in transformers >= 4.53 only, and transformers need not be installed.
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
