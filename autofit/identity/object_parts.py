"""Parts of an object that a signature may follow: attributes, the code of a method, the function inside a wrapper."""

from argparse import Namespace
from dataclasses import is_dataclass
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from autofit.identity.stable_text import MOST_ITEMS

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
