"""Reachable code: finds the user's code and plain attributes, starting from the objects that the user passed in.

The rules:

* Code is followed through the names it uses: globals, attributes of the user's modules, closures, default arguments,
  `__self__`, `functools.partial`, `__wrapped__`, attributes that hold functions, the methods of classes. For
  installed packages and the standard library, only the name and the package's `__version__` are recorded.
* Plain attributes (numbers, strings, flags, containers of these, shapes of tensors and arrays) are recorded for every
  module of the model, for objects of the user's classes, and for configuration objects of any class.
* State that training changes is not recorded: attributes and globals that the code of a step assigns. They are found in
  the bytecode reachable from `forward`, `__call__`, `__getitem__`, hooks and the functions passed in. An attribute that
  a method assigns is taken to be of the method's class, or of a module. A counter in a container (`self.seen["n"] +=
  1`) is not found in this way; `ReachedFacts.stable` leaves it out if steps changed it.
* Values of parameters, buffers and other tensors are never recorded. Of a long container only the length is.

The result does not depend on addresses, the order of sets, hashes of texts, or the progress of a search.
"""

import functools
import re
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.identity.stable_text import DEEPEST, MOST_ITEMS, SEQUENCES, SETS, assigned_by, names_of, plain, text_of

_INSTALLED = tuple(
    {str(Path(path)) + "/" for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    | {f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/"}
)


@functools.lru_cache(4096)
def installed(filename: str) -> bool:
    """Returns whether a source file belongs to Python, torch, this package or another installed one."""
    return filename.startswith((*_INSTALLED, "<frozen")) or "site-packages/" in filename or "dist-packages/" in filename


def of_package(module_name: str | None) -> bool:
    """Returns whether a module belongs to an installed package or is not loaded."""
    if module_name == "__main__" or module_name not in sys.modules:
        return False
    found = getattr(sys.modules[module_name], "__file__", None)
    return found is None or installed(found)


def named(module_name: str | None, name: str = "") -> str:
    """Returns the name of an object of an installed package, with the package's version if it has one."""
    version = getattr(sys.modules.get((module_name or "").partition(".")[0]), "__version__", "")
    return f"{module_name}.{name} {version if isinstance(version, str) else ''}"


_OF_A_CLASS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl", "__slots__",
})  # fmt: skip
INSIDE = ("__func__", "func", "fget", "fset")
"""Attributes in which Python's method decorators hold the function."""
DEFINED = (FunctionType, MethodType, type, staticmethod, classmethod, property)


def attributes_of(value: object) -> dict[str, object]:
    """Returns the attributes of an object without calling its `__getattribute__`."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            private = name.startswith("__") and not name.endswith("__")
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if hasattr(kind, mangled) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(value, mangled, None)
    return found


def is_part_of_class(name: str, value: object) -> bool:
    """Returns whether an attribute of a class is included. Special attributes are only if they are functions."""
    special = name.startswith("__") and name.endswith("__")
    return name not in _OF_A_CLASS and (not special or isinstance(value, DEFINED))


def codes_of(value: object) -> list[CodeType]:
    """Returns the code of a method, plain or with one of Python's decorators."""
    inner = [getattr(value, name, None) for name in INSIDE]
    return [each.__code__ for each in (value, *inner) if isinstance(each, FunctionType)]


def is_drawn_positions(value: object) -> bool:
    """Returns whether a value is a list of positions in a data set, which may differ in another run."""
    return isinstance(value, (list, tuple, range)) and all(isinstance(each, int) for each in value[:MOST_ITEMS])


def is_hash(name: str, value: object) -> bool:
    """Returns whether an attribute holds what `hash` returned, which differs between processes.

    transformers keeps such a hash of a model's generation config.
    """
    return type(value) is int and name.rstrip("_").endswith("hash")


def is_configuration(value: object) -> bool:
    """Returns whether an object is a record of plain settings, of any class."""
    kind = type(value)
    by_name = kind.__name__.endswith("Config") and hasattr(kind, "to_dict")
    return isinstance(value, (SimpleNamespace, Namespace, dict)) or is_dataclass(kind) or by_name


def wrapped_function(value: object) -> object:
    """Returns the function inside a library object that is known to hold one, else None."""
    module = type(value).__module__
    if module in ("functools", "builtins"):
        return getattr(value, "__wrapped__", None)
    if isinstance(value, np.vectorize):
        return value.pyfunc
    return getattr(value, "_init_fn", None) if module.startswith("torch._library") else None


def cell_content(cell: Any) -> object:
    """Returns the content of a closure cell, or None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:  # the cell is empty
        return None


class Name(NamedTuple):
    """The name of an attribute or a global.

    Attributes:
        owner: the class of the object that has the attribute. None for a global or an attribute of a module.
        name: the name.
    """

    owner: type | None
    name: str


class Fact(NamedTuple):
    """One recorded fact.

    Attributes:
        kind: "code" or "attributes".
        text: the text that is compared.
        through: the attributes and globals on the path to it.
    """

    kind: str
    text: str
    through: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Changing:
    """The names that the code of a step assigns.

    Attributes:
        anywhere: globals, and attributes that functions assign, of any object.
        owned: attributes that methods assign, with the classes of the methods.
    """

    anywhere: frozenset[str]
    owned: Mapping[str, tuple[type, ...]]

    def covers(self, through: tuple[Name, ...]) -> bool:
        """Returns whether one of these names is assigned."""
        return any(self._assigned(each) for each in through)

    def _assigned(self, each: Name) -> bool:
        if each.name in self.anywhere:
            return True
        classes, owner = self.owned.get(each.name, ()), each.owner
        if owner is None:
            return bool(classes)
        return any(issubclass(owner, kind) or issubclass(kind, owner) for kind in classes)


@dataclass(frozen=True, slots=True)
class ReachedFacts:
    """The recorded facts, by path from the objects passed in."""

    found: Mapping[str, Fact]

    def stable(self, before: "ReachedFacts") -> "ReachedFacts":
        """Returns the facts that are equal in `before`."""
        return ReachedFacts({path: fact for path, fact in self.found.items() if before.found.get(path) == fact})

    def lines(self, kind: str) -> list[str]:
        """Returns the facts of a kind, one per line."""
        return [f"{path}={fact.text}" for path, fact in sorted(self.found.items()) if fact.kind == kind]


MOST_OBJECTS = 50_000
"""Maximum number of objects followed. Unlike a time limit, a count gives the same result in every process."""
_OF_A_MODULE = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
"""TorchScript's counter of classes of one name in this process."""
_COMPILED = "_torchdynamo"
"""Prefix of the attributes that torch.compile sets on functions and modules: object ids and compiled code."""
_STEPPING = frozenset({"forward", "__call__", "__getitem__", "__iter__", "__next__"})
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})


def reach(**roots: object) -> ReachedFacts:
    """Returns the facts that are reachable from the named objects."""
    walk = _ReachWalk()
    for name, value in roots.items():
        walk.visit(name, value)
    changing = walk.changing()
    kept = {p: fact for p, fact in walk.facts.items() if fact.kind == "code" or not changing.covers(fact.through)}
    return ReachedFacts(kept)


class _ReachWalk:
    """One walk. Objects are visited in a deterministic order, so that paths are the same each time."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        self._seen: dict[int, str] = {}
        self._kept: list[object] = []  # keeps temporary objects alive, so that ids are not reused
        self._through: tuple[Name, ...] = ()
        self._codes: dict[CodeType, bool] = {}  # code -> whether it is known to run in a step
        self._owners: dict[CodeType, type] = {}  # classes of methods

    def visit(self, path: str, value: object, depth: int = 0) -> None:
        """Records `value` and everything reachable from it. If reading it raises, only its class is recorded."""
        through = self._through
        try:
            self._visit(path, value, depth)
        except Exception:  # noqa: BLE001  # a user's object may raise any exception when it is inspected
            self._through = through
            self._note("attributes", path, type(value).__qualname__)

    def _visit(self, path: str, value: object, depth: int) -> None:
        text = plain(value)
        if text is None and depth <= DEEPEST and len(self._kept) < MOST_OBJECTS:
            text = self._seen_as(path, value)
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

    def _seen_as(self, path: str, value: object) -> str | None:
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
        root_path = re.sub(r"\.(func|__func__|fget|__wrapped__)", "", path)
        self._codes[code] = self._codes.get(code, False) or "." not in root_path or root_path.endswith("]")
        users = not installed(code.co_filename)
        self._note("code", path, text_of(code) if users else named(function.__module__, function.__qualname__))
        cells = {
            name: cell_content(cell) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False)
        }
        self._each(f"{path}.closure", cells, depth)
        self._each(path, vars(function), depth)  # __wrapped__ is among them
        if not users:
            return
        defaults = {"defaults": function.__defaults__, "keyword defaults": function.__kwdefaults__}
        self._each(path, defaults, depth)
        names = names_of(code)
        for name in sorted(names & function.__globals__.keys()):
            self._global(f"{path}:{name}", name, function.__globals__[name], names, depth)

    def _global(self, path: str, name: str, value: object, names: frozenset[str], depth: int) -> None:
        """Follows a global. In a module of the user's, only the names that the code uses are followed."""
        if isinstance(value, ModuleType) and not of_package(value.__name__) and depth <= DEEPEST:
            for inner in sorted(names & vars(value).keys() - {name}):
                self._global(f"{path}.{inner}", inner, vars(value)[inner], names, depth + 1)
            return
        self._named(path, name, value, depth)

    def _class(self, path: str, kind: type, depth: int) -> None:
        bases = [base for base in kind.__mro__ if of_package(base.__module__)]
        users = [base for base in kind.__mro__ if base not in bases]
        above = [named(base.__module__, base.__qualname__) for base in bases if base is not object]
        self._note("code", path, ", ".join(above))
        for base in users:
            items = {k: v for k, v in sorted(vars(base).items()) if is_part_of_class(k, v)}
            self._owners.update({code: base for value in items.values() for code in codes_of(value)})
            self._each(f"{path}.{base.__qualname__}", items, depth, base)
        if users and issubclass(kind, nn.Module):
            return
        for base in bases:  # attributes that an installed module's step assigns change too
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
            self._note("attributes", path, str(kinds))  # a set has no order
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
        elif isinstance(value, (DataLoader, Dataset, Sampler)):  # classes of torch, such as Subset: follow their parts
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
            compiled = name.startswith(_COMPILED) and not name.endswith("_orig_callable")
            if value is not None and not compiled and not is_hash(name, value):
                self._named(f"{path}.{name}", name, value, depth, owner)

    def _named(self, path: str, name: str, value: object, depth: int, owner: type | None = None) -> None:
        """Follows a named value. The names of functions and classes are not tracked, since steps do not assign them."""
        before = self._through
        self._through = before if issubclass(type(value), DEFINED) else (*before, Name(owner, name))
        self.visit(path, value, depth)
        self._through = before
