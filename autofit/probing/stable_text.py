"""Texts of values and of compiled code that are the same in every process, and what code names and assigns."""

import functools
import re
from collections import deque
from collections.abc import Iterator
from dis import opmap
from enum import Enum
from pathlib import PurePath
from types import CodeType
from typing import Any

import numpy as np
import torch

MOST_ITEMS = 1000
"""Of a longer container only the length counts: it is data."""
DEEPEST = 50
"""Nothing is followed further down than this."""
SEQUENCES, SETS = (list, tuple, deque), (set, frozenset)
_SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, type(...), range, slice,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
)  # fmt: skip


def plain(value: Any, depth: int = 0) -> str | None:  # noqa: PLR0911  # one line for each kind
    """Returns a text of a plain value that is the same in every process; None of what is not plain."""
    kind = type(value)
    if kind in _SIMPLE:
        return repr(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{kind.__name__}{tuple(value.shape)}{value.dtype}"
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, (PurePath, re.Pattern)):
        return f"{kind.__name__} {value.pattern if isinstance(value, re.Pattern) else value}"
    if isinstance(value, np.generic):
        return f"{value.dtype}{value.item()!r}"
    for simple in (bool, int, float, str, bytes):
        if isinstance(value, simple):
            return f"{kind.__qualname__} {simple.__repr__(value)}"
    if not isinstance(value, (*SEQUENCES, *SETS, dict)):
        return None
    if len(value) > MOST_ITEMS or depth > DEEPEST:
        return f"{kind.__name__} of {len(value)}"
    return _container_text(value, depth + 1)


def _container_text(value: Any, depth: int) -> str | None:
    pairs = [(plain(k, depth), plain(v, depth)) for k, v in value.items()] if isinstance(value, dict) else []
    texts = [None if None in pair else f"{pair[0]}: {pair[1]}" for pair in pairs]
    if not isinstance(value, dict):
        texts = [plain(item, depth) for item in value]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    ordered = known if isinstance(value, SEQUENCES) else sorted(known)
    return f"{type(value).__name__}({', '.join(ordered)})"


def text_of(code: CodeType) -> str:
    """Returns a text of compiled code that is the same in each process and wherever the code stands in its file."""
    return f"{code.co_code.hex()}{code.co_names}{[_constant(value) for value in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return text_of(value)
    return plain(value) or repr(value)  # a set has no order of its own


@functools.lru_cache(4096)
def names_of(code: CodeType) -> frozenset[str]:
    """Returns the globals and attributes that code names, that of functions inside it too."""
    inner = (names_of(value) for value in code.co_consts if isinstance(value, CodeType))
    return frozenset(code.co_names).union(*inner)


@functools.lru_cache(4096)
def assigned_by(code: CodeType) -> frozenset[str]:
    """Returns the attributes and globals that code assigns, that of functions inside it too."""
    return frozenset(_stores(code))


def _stores(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stores(constant)
    # Two bytes an instruction since Python 3.6; the argument of these is an index of the names.
    stores, extended, high = (opmap["STORE_ATTR"], opmap["STORE_GLOBAL"]), opmap["EXTENDED_ARG"], 0
    for place in range(0, len(code.co_code), 2):
        operation, argument = code.co_code[place], code.co_code[place + 1] | high
        high = argument << 8 if operation == extended else 0
        if operation in stores:
            yield code.co_names[argument]
