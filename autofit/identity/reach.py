"""Reach: the user's code and plain attributes, followed from the objects that the user gave.

What counts, and what does not:

* Code is followed through what it names: globals, attributes of the user's own modules, closures, default arguments,
  `__self__`, `functools.partial`, `__wrapped__`, attributes that hold functions, the methods of classes. Of an
  installed package, and of the standard library, only the name and the package's `__version__` count.
* Plain attributes (numbers, texts, flags, containers of these, shapes of tensors and arrays) count for every module of
  the model, for objects of the user's classes, and for configuration objects of any class.
* What changes because a training goes on does not count: an attribute or global that the code of a step assigns, found
  in the bytecode that is reachable from `forward`, `__call__`, `__getitem__`, hooks and the functions given. What a
  method assigns is taken to be of its class, or of a module. A counter in a container (`self.seen["n"] += 1`) cannot be
  told so; `ReachedFacts.stable` leaves it out where steps have changed it.
* Values of parameters, buffers and other tensors never count, nor does more of a long container than its length.

Nothing here depends on addresses, on the order of sets, or on how far a search has come.
"""

import functools
import re
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.identity.object_parts import (
    DEFINED,
    INSIDE,
    attributes_of,
    cell_content,
    codes_of,
    counts_in_a_class,
    is_configuration,
    is_drawn_positions,
    wrapped_function,
)
from autofit.identity.packages import installed, named, of_package
from autofit.identity.reached_facts import Changing, Fact, Name, ReachedFacts
from autofit.identity.stable_text import DEEPEST, SEQUENCES, SETS, assigned_by, names_of, plain, text_of

MOST_OBJECTS = 50_000
"""Nothing more is followed then. The count is the same in every process, which seconds would not be."""
_OF_A_MODULE = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
"""How many classes of one name TorchScript has met in this process."""
_COMPILED = "_torchdynamo"
"""What torch.compile puts on functions and modules: numbers of objects, and what it has compiled."""
_STEPPING = frozenset({"forward", "__call__", "__getitem__", "__iter__", "__next__"})
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})


def reach(**given: object) -> ReachedFacts:
    """Returns what can be reached from the objects that were given, by their names."""
    walk = _ReachWalk()
    for name, value in given.items():
        walk.visit(name, value)
    changing = walk.changing()
    kept = {p: fact for p, fact in walk.facts.items() if fact.kind == "code" or not changing.covers(fact.through)}
    return ReachedFacts(kept)


class _ReachWalk:
    """One walk. Objects are visited in an order that the program decides, so that paths are the same each time."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        self._seen: dict[int, str] = {}
        self._kept: list[object] = []  # what is made on the way keeps its id
        self._through: tuple[Name, ...] = ()
        self._codes: dict[CodeType, bool] = {}  # whether it is known to run in a step
        self._owners: dict[CodeType, type] = {}  # of methods

    def visit(self, path: str, value: object, depth: int = 0) -> None:
        """Records `value`, and what can be reached from it; of what cannot be looked at, its class."""
        through = self._through
        try:
            self._visit(path, value, depth)
        except Exception:  # noqa: BLE001  # objects of the user's do what they like when they are looked at
            self._through = through
            self._note("attributes", path, type(value).__qualname__)

    def _visit(self, path: str, value: object, depth: int) -> None:
        text = plain(value)
        if text is None and depth <= DEEPEST and len(self._kept) < MOST_OBJECTS:
            text = self._met(path, value)
            if text is None:
                self._follow(path, value, depth + 1)
        if text is not None:
            self._note("code" if issubclass(type(value), DEFINED) else "attributes", path, text)

    def changing(self) -> Changing:
        """Returns the attributes and globals that the code of a step assigns."""
        running = {code for code, steps in self._codes.items() if steps or code.co_name in _STEPPING}
        called = {name for code in running for name in names_of(code)}
        while more := {code for code in self._codes if code not in running and code.co_name in called - _MAKING}:
            running |= more
            called |= {name for code in more for name in names_of(code)}
        anywhere: set[str] = set()
        owned: dict[str, tuple[type, ...]] = {}
        for code in running:
            attributes, names = assigned_by(code)
            anywhere |= names
            if (owner := self._owners.get(code)) is None:
                anywhere |= attributes
                continue
            for name in attributes:
                owned[name] = (*owned.get(name, ()), owner)
        return Changing(frozenset(anywhere), owned)

    def _met(self, path: str, value: object) -> str | None:
        if id(value) in self._seen:
            return f"as {self._seen[id(value)]}"
        self._seen[id(value)] = path
        self._kept.append(value)
        return None

    def _note(self, kind: str, path: str, text: str) -> None:
        self.facts[path] = Fact(kind, text, self._through)

    def _follow(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, FunctionType):
            self._function(path, value, depth)
        elif isinstance(value, MethodType):
            self.visit(f"{path}.__self__", value.__self__, depth)
            self.visit(path, value.__func__, depth)
        elif isinstance(value, functools.partial):
            self._each(path, {"func": value.func, "args": value.args, "keywords": value.keywords}, depth)
        elif isinstance(value, (staticmethod, classmethod, functools.cached_property, property)):
            self._each(path, {name: getattr(value, name, None) for name in INSIDE}, depth)
        elif isinstance(value, type):
            self._class(path, value, depth)
        elif isinstance(value, ModuleType):
            self._note("code", path, named(value.__name__))
        elif isinstance(value, (*SEQUENCES, *SETS, dict)):
            self._container(path, value, depth)
        else:
            self._instance(path, value, depth)

    def _function(self, path: str, function: FunctionType, depth: int) -> None:
        code = function.__code__
        given = re.sub(r"\.(func|__func__|fget|__wrapped__)", "", path)
        self._codes[code] = self._codes.get(code, False) or "." not in given or given.endswith("]")
        own = not installed(code.co_filename)
        self._note("code", path, text_of(code) if own else named(function.__module__, function.__qualname__))
        cells = {
            name: cell_content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False)
        }
        self._each(f"{path}.closure", cells, depth)
        self._each(path, vars(function), depth)  # __wrapped__ is among them
        if not own:
            return
        defaults = {"defaults": function.__defaults__, "keyword defaults": function.__kwdefaults__}
        self._each(path, defaults, depth)
        names = names_of(code)
        for name in sorted(names & function.__globals__.keys()):
            self._global(f"{path}:{name}", name, function.__globals__[name], names, depth)

    def _global(self, path: str, name: str, value: object, names: frozenset[str], depth: int) -> None:
        """Follows a global; of a module of the user's, what the code names of it."""
        if isinstance(value, ModuleType) and not of_package(value.__name__) and depth <= DEEPEST:
            for inner in sorted(names & vars(value).keys() - {name}):
                self._global(f"{path}.{inner}", inner, vars(value)[inner], names, depth + 1)
            return
        self._named(path, name, value, depth)

    def _class(self, path: str, kind: type, depth: int) -> None:
        bases = [base for base in kind.__mro__ if of_package(base.__module__)]
        own = [base for base in kind.__mro__ if base not in bases]
        above = [named(base.__module__, base.__qualname__) for base in bases if base is not object]
        self._note("code", path, ", ".join(above))
        for base in own:
            items = {k: v for k, v in sorted(vars(base).items()) if counts_in_a_class(k, v)}
            self._owners.update({code: base for value in items.values() for code in codes_of(value)})
            self._each(f"{path}.{base.__qualname__}", items, depth, base)
        if own and issubclass(kind, nn.Module):
            return
        for base in bases:  # what an installed module's step assigns changes too
            if issubclass(base, nn.Module) and base is not nn.Module:
                codes = [code for value in vars(base).values() for code in codes_of(value)]
                self._codes.update(dict.fromkeys(codes, False))
                self._owners.update(dict.fromkeys(codes, base))

    def _container(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            items = {plain(key) or f"#{place}": item for place, (key, item) in enumerate(value.items())}
            items = {key: items[key] for key in sorted(items)}
        elif isinstance(value, SETS):
            kinds = sorted(getattr(item, "__qualname__", type(item).__qualname__) for item in value)
            self._note("attributes", path, str(kinds))  # what it holds has no order of its own
            return
        else:
            items = {str(place): item for place, item in enumerate(value)}
        self._note("attributes", path, f"{type(value).__name__} of {len(items)}")
        for key, item in items.items():
            self.visit(f"{path}[{key}]", item, depth)

    def _instance(self, path: str, value: object, depth: int) -> None:
        kind = type(value)
        if isinstance(value, nn.Module):
            self._module(path, value, depth)
        elif isinstance(value, torch.optim.Optimizer):
            self.visit(f"{path}.class", kind, depth)
        elif not of_package(kind.__module__) or is_configuration(value):
            self.visit(f"{path}.class", kind, depth)
            self._each(path, attributes_of(value), depth, kind)
        elif isinstance(value, (DataLoader, Dataset, Sampler)):  # of torch's own, such as a subset: what it is made of
            self.visit(f"{path}.class", kind, depth)
            self._each(path, {k: v for k, v in attributes_of(value).items() if not is_drawn_positions(v)}, depth, kind)
        elif isinstance(value, BuiltinFunctionType):
            self._note("code", path, named(value.__module__, value.__qualname__))
        elif isinstance(value, (np.ufunc, torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            self._note("code", path, f"{named(kind.__module__, kind.__qualname__)}{value}")
        else:
            self._note("code", path, named(kind.__module__, kind.__qualname__))
            if (inner := wrapped_function(value)) is not None:
                self.visit(f"{path}.__wrapped__", inner, depth)

    def _module(self, path: str, module: nn.Module, depth: int) -> None:
        self.visit(f"{path}.class", type(module), depth)
        inner = vars(module)
        self._each(path, {k: v for k, v in inner.items() if k not in _OF_A_MODULE}, depth, type(module))
        if isinstance(module, torch.jit.ScriptModule):
            scripts = "".join(str(getattr(each, "code", "")) for each in module.modules())
            self._note("code", f"{path}.code", _MANGLED.sub("", scripts))
        for name in _HOOKS:
            for place, hook in enumerate(inner.get(name, {}).values()):
                self.visit(f"{path}.hook[{name}, {place}]", hook, depth)
        for name, child in inner.get("_modules", {}).items():
            self.visit(f"{path}.{name}", child, depth)

    def _each(self, path: str, values: Mapping[str, object], depth: int, owner: type | None = None) -> None:
        for name, value in values.items():
            if value is not None and (not name.startswith(_COMPILED) or name.endswith("_orig_callable")):
                self._named(f"{path}.{name}", name, value, depth, owner)

    def _named(self, path: str, name: str, value: object, depth: int, owner: type | None = None) -> None:
        """Follows a value that has a name; functions and classes are no state that a step could change."""
        before = self._through
        self._through = before if issubclass(type(value), DEFINED) else (*before, Name(owner, name))
        self.visit(path, value, depth)
        self._through = before
