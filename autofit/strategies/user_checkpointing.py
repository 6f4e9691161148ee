"""The user's own checkpointing: finds the flags that switch it on, and switches it off until a context is left."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.strategies.undo import Undo

OWN_FLAG = "gradient_checkpointing"
KNOWN_FLAGS = (OWN_FLAG, "grad_checkpointing")
"""Flags of transformers and diffusers, and of timm."""
_FLAG = re.compile(
    r"_?((use|with|do|enable)_)?((grad|gradient|act|activation)_)?checkpoint(ing|ed|s|_activations)?(_enabled)?|with_cp"
)
"""Names of flags. Others, such as `supports_gradient_checkpointing`, tell of something else."""
_CONFIGS = ("config", "cfg", "args")
"""Attributes in which models keep their settings."""


@dataclass(frozen=True, slots=True)
class Switch:
    """An entry of an object's attributes that switches checkpointing on.

    Attributes:
        module: the module that has the entry, or that holds the object that has it.
        attributes: the dictionary with the entry.
        name: name of the entry.
        off: value with which nothing is checkpointed.
    """

    module: nn.Module
    attributes: dict[str, Any]
    name: str
    off: Any = False


@dataclass(frozen=True, slots=True)
class UserCheckpointing:
    """The checkpointing that the user switched on in a model.

    A flag is an attribute that is `True`, and that a method of the model reads beside calling a checkpointing function.
    Such a flag is a switch: the method decides by it. Calls without a flag are not found.

    Attributes:
        switches: what to set to switch it off; () if the model does not checkpoint, or cannot be switched.
        reason: why it cannot be switched off; "" if it can, or if there is none.
    """

    switches: tuple[Switch, ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, model: nn.Module, owners: Iterable[nn.Module] = ()) -> "UserCheckpointing":
        """Finds the switches of a model, which is only read.

        Args:
            model: the user's model.
            owners: parts of it with a checkpointing method of their own, which sets `OWN_FLAG`.
        """
        modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        flags = frozenset(flag for kind in set(map(type, modules)) for flag in _flags(kind))
        owned = {part for owner in owners for part in owner.modules()}
        switches: dict[tuple[int, str], Switch] = {}
        for module in modules:
            for switch in _switches(module, flags | {OWN_FLAG} if module in owned else flags):
                switches.setdefault((id(switch.attributes), switch.name), switch)
            for name in sorted({*flags, *KNOWN_FLAGS}):
                if getattr(module, name, False) is True and (id(vars(module)), name) not in switches:
                    return cls(reason=f"no method was found that reads {name} of {type(module).__name__} as a switch")
        return cls(tuple(switches.values()))

    def within(self, block: nn.Module) -> bool:
        """Returns whether a part of `block` has a switch."""
        parts = set(block.modules())
        return any(switch.module in parts for switch in self.switches)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switches it off until the context is left."""
        with Undo() as undo:
            for switch in self.switches:
                undo.replace(switch.attributes, switch.name, switch.off)
            yield


def _switches(module: nn.Module, flags: frozenset[str]) -> Iterator[Switch]:
    """Yields the switches of one module: its flags, those of its configuration, and the function of a wrapper."""
    for name in flags:
        if getattr(module, name, False) is True and not isinstance(getattr(type(module), name, None), property):
            yield Switch(module, vars(module), name)
    for held in (vars(module).get(name) for name in _CONFIGS):
        attributes = held if isinstance(held, dict) else getattr(held, "__dict__", {})
        yield from (Switch(module, attributes, name) for name in flags if attributes.get(name) is True)
    # By name: the import of torch.distributed's wrapper takes long.
    if type(module).__name__ == "CheckpointWrapper" and _is_checkpoint(vars(module).get("checkpoint_fn")):
        yield Switch(module, vars(module), "checkpoint_fn", off=_called)


def _is_checkpoint(function: object) -> bool:
    return function is checkpoint or (isinstance(function, partial) and function.func is checkpoint)


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function, in the place of a checkpointed call."""
    return function(*args, **kwargs)


@cache
def _flags(kind: type) -> frozenset[str]:
    """Returns the names that methods of a class read as flags of checkpointing."""
    methods = [
        method
        for base in kind.__mro__
        if base not in (nn.Module, object)
        for name, method in vars(base).items()
        if name != "__init__" and isinstance(method, FunctionType)
    ]
    return frozenset(flag for method in methods for flag in _flags_of(method))


def _flags_of(method: FunctionType) -> Iterator[str]:
    names = set(_names(method.__code__))
    for flag in names:
        if _FLAG.fullmatch(flag) and any(_names_checkpoint(other, method) for other in names - {flag}):
            yield flag


def _names(code: CodeType) -> Iterator[str]:
    """Yields the names of globals, attributes and keys that a function and its inner functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _names_checkpoint(name: str, method: FunctionType) -> bool:
    return "checkpoint" in name or getattr(method.__globals__.get(name), "__module__", "") == checkpoint.__module__
