"""State inside library objects that is cheap to read: tables, images, seeds, function caches.

A change is named after the search. No library is imported here: a library that was not imported has no objects.
"""

import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

from autofit.guard.code_origin import Origin
from autofit.guard.used_globals import code_origin

_CELLS = 100_000
"""Maximum number of table cells read, in evenly spaced rows: about 0.1 s."""
_MEMO = type(lru_cache(len))


def shown_state(found: Any) -> Callable[[], object] | None:
    """Returns a function that reads the state of a library's object. None for other objects."""
    if isinstance(found, _MEMO):
        return _memo_reader(found)
    for library, classes, reader in (
        ("numpy.random", ("SeedSequence",), _seed_reader),
        ("pandas", ("DataFrame", "Series"), _table_reader),
        ("PIL.Image", ("Image",), _image_reader),
    ):
        module = sys.modules.get(library)
        if module is not None and isinstance(found, tuple(getattr(module, name, ()) for name in classes)):
            return reader(found)
    return None


def _memo_reader(memo: Any) -> Callable[[], object] | None:
    """Returns a function that counts the cached results of a user's function. None for functions of libraries."""
    function = getattr(memo, "__wrapped__", None)
    users = isinstance(function, FunctionType) and code_origin(function) is Origin.USER
    return (lambda: memo.cache_info().currsize) if users else None


def _seed_reader(seed: Any) -> Callable[[], object]:
    return lambda: seed.n_children_spawned


def _table_reader(table: Any) -> Callable[[], object]:
    return lambda: [table.shape, table.iloc[:: table.size // _CELLS + 1].to_csv()]


def _image_reader(image: Any) -> Callable[[], object] | None:
    """Returns a function that reads the pixels. None if the image is not loaded, since reading would load it."""
    return None if getattr(image, "im", None) is None else lambda: zlib.crc32(image.tobytes())
