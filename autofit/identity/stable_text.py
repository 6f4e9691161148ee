"""Texts of values and compiled code that are the same in every process, and the names that code uses and assigns."""

import functools
import hashlib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dis import opmap
from enum import Enum
from pathlib import PurePath
from types import CodeType
from typing import Any

import numpy as np
import torch

from autofit.guard.digest import in_full

MOST_ITEMS = 1000
"""Maximum number of items of a container. A longer one is taken as data and represented by its length."""
LONGEST, MOST_HASHED = 1000, 2**20
"""Maximum length of a string, and of one that is hashed. Above the first, a string is represented by its length and a
digest. Above the second, in characters or bytes, it is taken as data and represented by its length."""
DEEPEST = 50
"""Maximum depth to which objects are followed."""
_HAS_DOCSTRING = 0x4000000  # a flag of code since Python 3.14
SEQUENCES, SETS = (list, tuple, deque), (set, frozenset)
_SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, type(...), range, slice,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
)  # fmt: skip

_EXACTLY: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, str: str.__str__, bytes: lambda value: bytes(memoryview(value)),
}  # fmt: skip
"""Conversions from a subclass to the built-in class, whatever the subclass overrides."""


def plain(value: Any) -> str | None:
    """Returns a text of a plain value that is the same in every process. None if the value is not plain."""
    return _Texts().of(value, 0)


def _simple(value: Any) -> str | None:
    """Returns the text of a value that is not a container. None for any other."""
    kind = type(value)
    if kind in (str, bytes) and len(value) > LONGEST:
        return f"{kind.__name__} of {len(value)}{_digest(value)}"
    return in_full(value) if kind in _SIMPLE else _of_known_class(value, kind)


def _of_known_class(value: Any, kind: type) -> str | None:  # one branch per class
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{kind.__name__}{tuple(value.shape)}{value.dtype}"
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, (PurePath, re.Pattern)):
        return f"{kind.__name__} {value.pattern if isinstance(value, re.Pattern) else value}"
    if isinstance(value, np.generic):
        return f"{value.dtype}{value.item()!r}"
    for simple, exactly in _EXACTLY.items():
        if isinstance(value, simple):
            return f"{kind.__qualname__} {_simple(exactly(value))}"
    return None


class _Texts:
    """The texts of one value and its content. Each container is converted once."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}
        self._above: set[int] = set()

    def of(self, value: Any, depth: int) -> str | None:
        if (text := _simple(value)) is not None or not isinstance(value, (*SEQUENCES, *SETS, dict)):
            return text
        if len(value) > MOST_ITEMS or depth > DEEPEST:
            return f"{type(value).__name__} of {len(value)}"
        if id(value) in self._above:
            return "itself"
        if id(value) not in self._known:
            self._above.add(id(value))
            self._known[id(value)] = self._container(value, depth + 1)
            self._above.discard(id(value))
        return self._known[id(value)]

    def _container(self, value: Any, depth: int) -> str | None:
        """Returns the text of a container. None if an item is not plain."""
        known: list[str] = []
        for item in value.items() if isinstance(value, dict) else value:
            texts = [self.of(each, depth) for each in item] if isinstance(value, dict) else [self.of(item, depth)]
            if None in texts:
                return None
            known.append(": ".join(text for text in texts if text is not None))
        joined = ", ".join(known if isinstance(value, SEQUENCES) else sorted(known))
        return f"{type(value).__name__}({joined if len(joined) <= LONGEST else _digest(joined)})"


def _digest(value: str | bytes) -> str:
    if len(value) > MOST_HASHED:
        return ""
    data = value if isinstance(value, bytes) else value.encode(errors="backslashreplace")
    return f" {hashlib.sha256(data).hexdigest()[:16]}"


def text_of(code: CodeType) -> str:
    """Returns a text of compiled code that is the same in every process and independent of its position in the file."""
    return f"{code.co_code.hex()}{code.co_names}{[_constant(value) for value in _constants(code)]}"


def _constants(code: CodeType) -> tuple[object, ...]:
    """Returns the constants of code as if it had no docstring."""
    if not _has_docstring(code):
        return code.co_consts
    if sys.version_info >= (3, 14):
        return code.co_consts[1:]
    return None, *code.co_consts[1:]  # as in code without a docstring


def _has_docstring(code: CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & _HAS_DOCSTRING)
    # Before 3.14, the first constant of a named function is its docstring, or None.
    return not code.co_name.startswith("<") and bool(code.co_consts) and isinstance(code.co_consts[0], str)


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return text_of(value)
    return plain(value) or repr(value)  # a set has no order


@functools.lru_cache(4096)
def names_of(code: CodeType) -> frozenset[str]:
    """Returns the globals and attributes that code uses, including nested functions."""
    inner = (names_of(value) for value in code.co_consts if isinstance(value, CodeType))
    return frozenset(code.co_names).union(*inner)


@functools.lru_cache(4096)
def assigned_by(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the attributes and the globals that code assigns, including nested functions."""
    found = frozenset(_stores(code))
    by_kind = [frozenset(name for kind, name in found if kind == wanted) for wanted in ("STORE_ATTR", "STORE_GLOBAL")]
    return by_kind[0], by_kind[1]


def _stores(code: CodeType) -> Iterator[tuple[str, str]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stores(constant)
    # An instruction has two bytes since Python 3.6. The argument of these is an index into `co_names`.
    stores, extended, high = {opmap[kind]: kind for kind in ("STORE_ATTR", "STORE_GLOBAL")}, opmap["EXTENDED_ARG"], 0
    for place in range(0, len(code.co_code), 2):
        operation, argument = code.co_code[place], code.co_code[place + 1] | high
        high = argument << 8 if operation == extended else 0
        if operation in stores:
            yield stores[operation], code.co_names[argument]
