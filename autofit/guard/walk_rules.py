"""What the walk follows: whose code an object is, the globals that a function uses, and the rules of the walk."""

import io
import sys
import threading
import types
import weakref
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Collection, Iterator
from enum import Enum
from functools import lru_cache, partial, partialmethod
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.guard.object_state import SIMPLE
from autofit.torch_internals import LoaderIterator, is_traceable_wrapper_subclass, is_wrapped_by_functorch

INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders in which libraries are installed."""


class Origin(Enum):
    """Whose code it is. This decides how far the walk follows it."""

    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    STANDARD = "standard"
    AUTOFIT = "autofit"


def origin_of(found: object) -> Origin:
    """Returns whose code a class, a function or a module (by its name) is. All that was not installed is the user's.

    A wrapper belongs to the module that defines it.
    """
    if isinstance(found, FunctionType):
        found = found.__globals__.get("__name__")
    elif isinstance(found, type):
        found = getattr(found, "__module__", None)
    return _origin(found) if isinstance(found, str) else Origin.USER


@lru_cache(maxsize=4096)
def _origin(module_name: str) -> Origin:
    package = module_name.partition(".")[0]
    if package == "__main__":  # a script or a notebook, although Python itself has a module of this name
        return Origin.USER
    if package in sys.stdlib_module_names:
        return Origin.STANDARD
    if package in ("torch", "autofit"):
        return Origin(package)
    place = getattr(sys.modules.get(module_name), "__file__", None)
    installed = place is not None and any(folder in PurePath(place).parts for folder in INSTALLED)
    return Origin.LIBRARY if installed else Origin.USER


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Returns the globals and attributes that code looks up. A name is a global if the module has one of that name."""
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in names_in(value)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def namespaces(function: FunctionType) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Yields the user's namespaces that a function reads or writes, each as name, namespace and names used."""
    if origin_of(function) is not Origin.USER:
        return
    module_globals, names = function.__globals__, names_in(function.__code__)
    yield str(module_globals.get("__name__", "globals")), module_globals, names
    # An `import` inside the function may find a module of each package around its own, if it is imported already.
    package = [f"{part}." for part in str(module_globals.get("__package__") or "").split(".") if part]
    around = ["".join(package[:depth]) for depth in range(len(package) + 1)]
    todo: list[Any] = []
    for name in names:
        imported = [sys.modules[f"{place}{name}"] for place in around if f"{place}{name}" in sys.modules]
        todo += [module_globals[name]] if name in module_globals else imported
    seen = {id(module_globals)}
    while todo:
        module = todo.pop(0)
        is_users = isinstance(module, ModuleType) and origin_of(module.__name__) is Origin.USER
        if is_users and id(vars(module)) not in seen:
            seen.add(id(vars(module)))
            inside = tuple(name for name in names if name in vars(module))
            yield module.__name__, vars(module), inside
            todo += [vars(module)[name] for name in inside]


FAMILIES = (
    *(nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler),
    *(DataLoader, Sampler, Dataset, Distribution),
)
"""Classes of torch whose objects hold user state."""
IMMUTABLE = (
    *SIMPLE,
    *(types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
    *(types.GenericAlias, types.UnionType, types.EllipsisType, types.NotImplementedType),
    *(weakref.ref, weakref.ProxyType, weakref.CallableProxyType, property, staticmethod, classmethod, super),
)
"""Classes whose objects cannot change, or hold no state of their own."""
CONTAINERS = (dict, list, deque, set, tuple, frozenset)
"""Classes whose objects are followed as containers."""
_HOLDERS = (
    *(SimpleNamespace, Namespace, ChainMap, UserDict, UserList, partialmethod, threading.local),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, BaseException),
)
"""Classes of the standard library whose objects are followed like the user's."""
_QUIET_STANDARD = frozenset({
    *("abc", "ast", "builtins", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum"),
    *("fractions", "functools", "importlib", "inspect", "ipaddress", "logging", "numbers", "operator", "pathlib", "re"),
    *("string", "time", "types", "typing", "uuid", "warnings", "zoneinfo"),
})  # fmt: skip
"""Standard library modules whose other objects are values, or hold no user state (loggers)."""
_QUIET_LIBRARIES = frozenset({
    "numpy", "pandas", "PIL", "polars", "pyarrow", "sentencepiece", "tokenizers", "triton",
})  # fmt: skip
"""Libraries whose compiled objects are data or vocabularies, which a training step does not change."""
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore)
_LOADING: Any = LoaderIterator
_FILE, _LOCK, _GENERATOR, _ITERATOR = "an open file", "a lock", "a generator in progress", "an iterator in progress"
_NAMED = (_FILE, _LOCK, _GENERATOR, _ITERATOR)
MEMO = type(lru_cache(len))
_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
DATA_KEYS = ("dataset", "data_source")
"""Attributes in which loaders and samplers hold their data."""


def is_followed(found: object) -> bool:
    """Returns whether the attributes of an object are followed."""
    kind = type(found)
    if not _is_followed(kind):  # type: ignore[arg-type]  # a class can be hashed
        return False
    plain = origin_of(kind) in (Origin.TORCH, Origin.STANDARD) or hasattr(found, "__dict__")
    return plain or any("__slots__" in vars(each) for each in kind.__mro__)


@lru_cache(maxsize=4096)
def _is_followed(kind: type) -> bool:
    if issubclass(kind, FAMILIES):
        return True
    origin = origin_of(kind)
    if origin is Origin.STANDARD:
        return issubclass(kind, _HOLDERS)
    return origin not in (Origin.TORCH, Origin.AUTOFIT)


def nature(found: Any) -> str:
    """Describes an object that cannot be followed. Returns "" if it need not be."""
    what = _nature(type(found))  # type: ignore[arg-type]  # a class can be hashed
    if (what == _FILE and _is_terminal(found)) or (what and is_followed(found) and what not in _NAMED):
        return ""
    return what


@lru_cache(maxsize=4096)
def _nature(kind: type) -> str:
    for classes, word in ((io.IOBase, _FILE), (_LOCKS, _LOCK), (_RUNNING, _GENERATOR), (_LOADING, _ITERATOR)):
        if issubclass(kind, classes):
            return word
    origin, package = origin_of(kind), str(kind.__module__).partition(".")[0]
    if origin is Origin.STANDARD and issubclass(kind, Iterator):
        return _ITERATOR
    if origin in (Origin.TORCH, Origin.AUTOFIT):
        return ""
    if package in (_QUIET_STANDARD if origin is Origin.STANDARD else _QUIET_LIBRARIES):
        return ""
    return f"an object of type {kind.__module__}.{kind.__qualname__}"


def has_no_storage(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is nested or inside a function transform, so that its bytes cannot be accessed."""
    nested = tensor.is_nested and not is_traceable_wrapper_subclass(tensor)
    return nested or is_wrapped_by_functorch(tensor)


def entries(found: Any) -> Collection[Any]:
    """Returns the values or items of a container. Methods that a subclass overrides are bypassed."""
    kind: Any = next(kind for kind in CONTAINERS if isinstance(found, kind))
    if kind is dict:
        return dict.values(found)
    return found if type(found) is kind else list(kind.__iter__(found))


def unwrapped(found: object) -> list[tuple[str, object]]:
    """Returns the parts of a bound method, a `partial`, a cached function or a view, with suffixes for their names."""
    if isinstance(found, MethodType):
        return [("", found.__self__), ("", found.__func__)]
    if isinstance(found, partial):
        fixed = [(f" (argument {index})", value) for index, value in enumerate(found.args)]
        return [("", found.func), *fixed, ("", found.keywords), ("", vars(found))]
    if isinstance(found, MEMO):
        return [("", vars(found))]
    if isinstance(found, types.MappingProxyType):
        return [(f".{key}", value) for key, value in found.items()]
    if isinstance(found, memoryview):
        return [] if found.readonly else [("", found.obj)]
    if isinstance(found, types.BuiltinMethodType):  # `items.append`, held as a callable
        return [("", found.__self__)]
    return []


def _is_terminal(found: Any) -> bool:
    if found in (sys.stdout, sys.stderr, sys.stdin):
        return True
    try:
        return found.fileno() in (0, 1, 2)
    except (OSError, ValueError, AttributeError):
        return False
