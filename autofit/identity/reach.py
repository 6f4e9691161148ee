"""Finds facts: texts of the code and the plain attributes that a workload reaches, the same in every process.

The guard's walk finds the objects. Of the user's code, the bytecode is recorded, without docstrings; of what an
installed package defines, the name and the package's version. Plain values (numbers, strings, flags, containers of
these, shapes of tensors and arrays) are recorded for modules, objects of the user's classes, and configuration objects
of any class. Values of tensors are never recorded, and of a long container only the length.

State that a step changes is found by looking twice: `ReachedFacts.stable` leaves it out.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.guard.object_state import SIMPLE, Piece, in_full
from autofit.guard.state_walk import Walk, Whereabouts
from autofit.guard.walk_rules import CONTAINERS, Origin, entries, origin_of, unwrapped

MOST_ITEMS = 1000
"""Maximum number of items of a container. A longer one is taken as data and represented by its length."""
_MOST_LETTERS = 2**20
"""Maximum length of a string. A longer one is taken as data too."""
_HAS_DOCSTRING = 0x4000000  # a flag of code since Python 3.14
_OF_A_MODULE = frozenset(vars(nn.Module())) - {"_modules"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_COMPILED = re.compile(r"\._torchdynamo(?!\w*_orig_callable)\w*$")
"""Attributes that torch.compile sets on functions and modules: object ids and compiled code."""
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
"""TorchScript's counter of classes of one name in this process."""
_SETS, _DATA = (set, frozenset), (DataLoader, Dataset, Sampler)
_ENTERED = (FunctionType, type, nn.Module, *_DATA)
_OPERATORS = (np.ufunc, type(torch.ops.aten.relu), type(torch.ops.aten.relu.default))


class Fact(NamedTuple):
    """One recorded fact: its kind, "code" or "attributes", and the text that is compared."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ReachedFacts:
    """The recorded facts, by the name of what they are about."""

    found: Mapping[str, Fact]

    def stable(self, before: "ReachedFacts") -> "ReachedFacts":
        """Returns the facts that are equal in `before`."""
        return ReachedFacts({name: fact for name, fact in self.found.items() if before.found.get(name) == fact})

    def lines(self, kind: str) -> list[str]:
        """Returns the facts of a kind, one per line."""
        return [f"{name}={fact.text}" for name, fact in sorted(self.found.items()) if fact.kind == kind]


def reach(**roots: object) -> ReachedFacts:
    """Returns the facts that are reachable from the named objects. Changes and iterates nothing of the user's."""
    walk = _ReachWalk()
    for name, root in roots.items():
        walk.look(name, root)
    return ReachedFacts(walk.facts)


class _ReachWalk(Walk):
    """The walk that records texts instead of state."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, Fact] = {}

    def _add(self, piece: Piece, place: Whereabouts) -> None:
        """Records no state."""

    def _visit(self, name: str, found: Any, place: Whereabouts) -> None:
        is_hash = type(found) is int and name.rstrip("_").endswith("hash")  # differs between processes
        if found is None or is_hash or ("_torchdynamo" in name and _COMPILED.search(name)):
            return
        try:
            text = plain(found)
            fact = described(found) if text is None else Fact("attributes", text)
        except Exception:  # noqa: BLE001  # a user's object may raise any exception when it is inspected
            fact, text = Fact("attributes", type(found).__qualname__), ""
        known = self.facts.get(name)  # two methods may have one name, such as the getter and setter of a property
        self.facts[name] = fact if known is None else Fact(known.kind, f"{known.text}; {fact.text}")
        if text is not None:
            return
        if isinstance(found, torch.optim.Optimizer):  # training changes its attributes; its options are recorded apart
            self._todo.append((f"{name}.class", type(found), place))
        elif (inner := wrapped_function(found)) is not None:
            self._todo.append((f"{name}.__wrapped__", inner, place))
        elif _is_entered(found):
            super()._visit(name, found, place)

    def _push_attribute(self, name: str, key: str, value: Any, owner: object, place: Whereabouts) -> None:
        if key in _OF_A_MODULE and isinstance(owner, nn.Module):
            if key in _HOOKS and value:  # numbered, since their keys are counted in each process
                self._todo += [(f"{name}.hook[{key}, {at}]", hook, place) for at, hook in enumerate(value.values())]
        elif not are_drawn_positions(owner, value):
            super()._push_attribute(name, key, value, owner, place)


def _is_entered(found: object) -> bool:
    """Returns whether what an object holds belongs to the workload's identity."""
    if isinstance(found, _ENTERED) or is_configuration(found) or unwrapped(found):
        return True
    return origin_of(type(found)) is Origin.USER or (isinstance(found, CONTAINERS) and not isinstance(found, _SETS))


def is_configuration(found: object) -> bool:
    """Returns whether an object is a record of plain settings, of any class."""
    kind = type(found)
    by_name = kind.__name__.endswith("Config") and hasattr(kind, "to_dict")
    return isinstance(found, (SimpleNamespace, Namespace)) or is_dataclass(kind) or by_name


def are_drawn_positions(owner: object, value: object) -> bool:
    """Returns whether a data set or sampler of torch holds positions, which may be drawn anew in another run."""
    if not isinstance(owner, _DATA) or origin_of(type(owner)) is not Origin.TORCH:
        return False
    return isinstance(value, (list, tuple, range)) and all(isinstance(each, int) for each in value[:MOST_ITEMS])


def wrapped_function(found: object) -> object:
    """Returns the function inside an object of numpy or torch that is known to hold one, else None."""
    if isinstance(found, np.vectorize):
        return found.pyfunc
    return getattr(found, "_init_fn", None) if type(found).__module__.startswith("torch._library") else None


def named(module_name: str | None, name: str = "") -> str:
    """Returns the name of an object of a package, with the package's version if it has one."""
    version = getattr(sys.modules.get((module_name or "").partition(".")[0]), "__version__", "")
    return f"{module_name}.{name} {version if isinstance(version, str) else ''}"


def described(found: Any) -> Fact:
    """Returns the fact about an object that is not plain."""
    kind = type(found)
    if isinstance(found, FunctionType) and origin_of(found) is Origin.USER:
        return Fact("code", code_text(found.__code__))
    if isinstance(found, type):
        bases = [base for base in found.__mro__ if origin_of(base) is not Origin.USER and base is not object]
        return Fact("code", ", ".join(named(base.__module__, base.__qualname__) for base in bases))
    if isinstance(found, _SETS):
        return Fact("attributes", str(sorted(getattr(item, "__qualname__", type(item).__qualname__) for item in found)))
    if isinstance(found, CONTAINERS):
        return Fact("attributes", f"{kind.__name__} of {len(entries(found))}")
    if isinstance(found, ModuleType):
        return Fact("code", named(found.__name__))
    if isinstance(found, torch.jit.ScriptModule):
        return Fact("code", _MANGLED.sub("", "".join(str(getattr(each, "code", "")) for each in found.modules())))
    if isinstance(found, (FunctionType, BuiltinFunctionType)):
        return Fact("code", named(found.__module__, found.__qualname__))
    return Fact(
        "code", named(kind.__module__, kind.__qualname__) + (str(found) if isinstance(found, _OPERATORS) else "")
    )


def plain(found: Any) -> str | None:
    """Returns the text of a plain value, or of a container of such values and tuples of them. None for other objects.

    The text of a set or mapping does not depend on its order. That of a container with more than `MOST_ITEMS` items is
    its length.
    """
    if (text := _leaf(found)) is not None or not isinstance(found, CONTAINERS):
        return text
    items = list(dict.items(found)) if isinstance(found, dict) else list(entries(found))
    if len(items) > MOST_ITEMS:
        return f"{type(found).__name__} of {len(items)}"
    texts = [_joined(item) if type(item) is tuple else _leaf(item) for item in items]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    return f"{type(found).__name__}({', '.join(sorted(known) if isinstance(found, (dict, *_SETS)) else known)})"


def _joined(items: tuple[Any, ...]) -> str | None:
    texts = [_leaf(each) for each in items]
    known = [text for text in texts if text is not None]
    return f"({', '.join(known)})" if len(known) == len(texts) else None


def _leaf(found: Any) -> str | None:
    """Returns the text of a plain value that is not a container. None for any other object."""
    kind = type(found)
    if kind in SIMPLE:
        is_long = kind in (str, bytes) and len(found) > _MOST_LETTERS
        return f"{kind.__name__} of {len(found)}" if is_long else in_full(found)
    if issubclass(kind, (torch.Tensor, np.ndarray)):
        return f"{kind.__name__}{tuple(found.shape)}{found.dtype}"
    if issubclass(kind, Enum):
        return f"{kind.__qualname__}.{found.name}"
    if issubclass(kind, (PurePath, re.Pattern, np.generic)):
        return f"{kind.__name__} {getattr(found, 'pattern', found)}"
    base = next((base for base in (int, float, str, bytes) if issubclass(kind, base)), None)
    return None if base is None else f"{kind.__qualname__} {base.__repr__(found)}"  # whatever the class overrides


def code_text(code: CodeType) -> str:
    """Returns a text of compiled code that is the same in every process and independent of its position in the file."""
    return f"{code.co_code.hex()}{code.co_names}{[_constant(value) for value in _constants(code)]}"


def _constants(code: CodeType) -> tuple[object, ...]:
    """Returns the constants of code as if it had no docstring."""
    if sys.version_info >= (3, 14):
        return code.co_consts[1:] if code.co_flags & _HAS_DOCSTRING else code.co_consts
    # Before 3.14, the first constant of a named function is its docstring, or None.
    documented = not code.co_name.startswith("<") and bool(code.co_consts) and isinstance(code.co_consts[0], str)
    return (None, *code.co_consts[1:]) if documented else code.co_consts


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return code_text(value)
    if isinstance(value, (tuple, frozenset)):
        texts = [_constant(each) for each in value]
        return f"{type(value).__name__}{texts if isinstance(value, tuple) else sorted(texts)}"  # a set has no order
    return repr(value)
