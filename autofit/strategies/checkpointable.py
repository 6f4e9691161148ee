"""Checkpointable: the parts of a model that can be checkpointed, and the checkpointing that its user switched on."""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.strategies.blocks import find_blocks, outermost
from autofit.strategies.recompute import Recompute
from autofit.strategies.undo import ABSENT, Undo, put
from autofit.torch_internals import pytree
from autofit.workloads.tree import safe_getattr

_FLAG = re.compile(
    r"_?((use|with|do|enable)_)?((grad|gradient|act|activation)_)?checkpoint(ing|ed|s|_activations)?(_enabled)?|with_cp"
)
"""Names of flags, with those of transformers and diffusers (gradient_checkpointing) and of timm (grad_checkpointing).
Others, such as `supports_gradient_checkpointing`, tell of something else."""
_CONFIGS = ("config", "cfg", "args")
"""Attributes in which models keep their settings."""
_OF_ACTIVATIONS = re.compile(r"grad|act|use|with")
"""What the name of a flag in settings contains. Others are about saving the model, such as Lightning's
`enable_checkpointing`."""


class Switch(NamedTuple):
    """An entry of an object's attributes that switches checkpointing on.

    Attributes:
        module: the module that has the entry, or that holds the object that has it.
        attributes: the dictionary with the entry.
        name: name of the entry.
        off: value with which nothing is checkpointed.
    """

    module: nn.Module
    attributes: Any
    name: str
    off: Any = False


class Checkpointable:
    """The parts of a model that can be checkpointed, and the checkpointing that its user switched on.

    The user's is known by attributes: one that has the name of a flag and is `True`, or a wrapper of torch. Calls of
    `checkpoint` without such a flag are not found. Blocks are then checkpointed around them.

    Attributes:
        switches: what switches the user's checkpointing off; () if there is none.
        fixed: why it cannot be switched off; "" if it can, or if there is none.
        owners: outermost modules with their own checkpointing method; () if there are none.
        blocks: blocks that can be switched individually, in module order.
        counts: numbers of blocks that may be checkpointed, from 0 up.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        found = [switch for module in modules for switch in _switches(module)]
        switches = dict[tuple[int, str], Switch]()
        for each in found:  # settings that modules share are those of the outermost
            switches.setdefault((id(each.attributes), each.name), each)
        self.switches = tuple(switches.values())
        # The attributes of a class that holds settings are no dictionary.
        fixed = (
            f"{one.name} of {type(one.module).__name__} cannot be set"
            for one in found
            if isinstance(getattr(type(one.module), one.name, None), property) or not isinstance(one.attributes, dict)
        )
        self.fixed = next(fixed, "")
        self.owners = tuple(outermost(model, _has_own_method))
        owned = (module for owner in self.owners for module in owner.modules() if _has_own_flag(module))
        self.blocks = tuple(owned) if self.owners else find_blocks(model)
        self.counts = tuple(range(len(self.blocks) + 1))
        if self.owners and not self.blocks:
            self.counts = (0, len(find_blocks(model)) or 1)

    @contextmanager
    def checkpointed(self, chosen: Collection[int], selective: bool = False) -> Iterator[None]:
        """Checkpoints the blocks with these numbers, and switches the user's checkpointing off, in a context.

        If blocks cannot be switched individually, all are checkpointed. `selective` keeps the results of expensive
        operators; see `recompute`.
        """
        with Undo() as undo:
            for switch in self.switches:
                undo.replace(switch.attributes, switch.name, switch.off)
            if chosen and self.owners:
                layers = [(block, at in chosen) for at, block in enumerate(self.blocks)]
                undo.enter_context(_by_own_method(self.owners, layers, selective))
            elif chosen:  # below the hooks of a block, so that hooks run once
                for block in (self.blocks[at] for at in sorted(chosen)):
                    undo.replace(vars(block), "forward", CheckpointedForward(block, selective))
            yield


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
    kinds = CheckpointedForward | Recompute
    return isinstance(held.get("forward"), kinds) or isinstance(held.get("_gradient_checkpointing_func"), kinds)


@contextmanager
def _by_own_method(
    owners: Sequence[nn.Module], layers: Sequence[tuple[nn.Module, bool]], selective: bool
) -> Iterator[None]:
    """Enables the owners' checkpointing, then disables it for the layers that are not chosen."""
    before = [(attributes, dict(attributes)) for owner in owners for attributes in _attributes(owner)]
    with Undo() as undo, Undo() as disabling:
        try:
            for owner in owners:
                disabling.callback(_switch, owner, "disable")
                _switch(owner, "enable", {"use_reentrant": False})
            for layer, is_chosen in layers:
                recompute = Recompute(layer, selective)
                vars(layer).update(gradient_checkpointing=is_chosen, _gradient_checkpointing_func=recompute)
        finally:  # put back last, because the models' own `disable` leaves hooks and attributes behind
            for now, earlier in before:
                for key in now.keys() | earlier.keys():
                    if now.get(key, ABSENT) is not earlier.get(key, ABSENT):
                        undo.callback(put, now, key, earlier.get(key, ABSENT))
        yield


def _attributes(owner: nn.Module) -> Iterator[dict[Any, Any]]:
    """Yields the dictionaries that enabling may change: attributes, hooks, the configuration."""
    for module in owner.modules():
        yield vars(module)
        yield from (value for key, value in vars(module).items() if isinstance(value, dict) and "hooks" in key)
        config = vars(module).get("config")
        if hasattr(config, "__dict__"):
            yield vars(config)


def _switch(owner: nn.Module, way: str, *arguments: Any) -> None:
    """Calls the owner's method to "enable" or "disable" checkpointing. The newer name is preferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5.23 renamed it; 4.x has only the older name
        method = getattr(owner, f"activation_checkpointing_{way}", None)
        (method or getattr(owner, f"gradient_checkpointing_{way}"))(*arguments)


def _has_own_method(module: nn.Module) -> bool:
    """Returns whether a module has its own checkpointing method."""
    has_method = callable(getattr(module, "gradient_checkpointing_enable", None))
    return has_method and bool(getattr(module, "supports_gradient_checkpointing", True))


def _has_own_flag(module: nn.Module) -> bool:
    # By name: the class exists in transformers >= 4.53 only, and transformers need not be installed.
    return any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)


def _switches(module: nn.Module) -> Iterator[Switch]:
    """Yields the switches of one module: its flags, those of its configuration, and the function of a wrapper."""
    kind: type = type(module)
    for name in sorted({*filter(_FLAG.fullmatch, vars(module)), *_flags(kind)}):
        if safe_getattr(module, name) is True:
            yield Switch(module, vars(module), name)
    for held in (vars(module).get(name) for name in _CONFIGS):
        attributes = held if isinstance(held, dict) else getattr(held, "__dict__", {})
        for name, value in attributes.items():
            if value is True and _FLAG.fullmatch(str(name)) and _OF_ACTIVATIONS.search(str(name)):
                yield Switch(module, attributes, name)
    # By name: the import of torch.distributed's wrapper takes long.
    if type(module).__name__ == "CheckpointWrapper":
        used = vars(module).get("checkpoint_fn")
        if used is checkpoint or (isinstance(used, partial) and used.func is checkpoint):
            yield Switch(module, vars(module), "checkpoint_fn", off=_called)


@cache
def _flags(kind: type) -> frozenset[str]:
    """Returns the attributes of a class that have the name of a flag."""
    return frozenset(name for base in kind.__mro__ for name in vars(base) if _FLAG.fullmatch(name))


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function, in the place of a checkpointed call."""
    return function(*args, **kwargs)
