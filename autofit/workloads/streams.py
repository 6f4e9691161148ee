"""Streams: reading from a second iterator of an iterable, with all state restored afterwards."""

import copy
import io
import itertools
import random
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.torch_internals import LoaderIterator
from autofit.workloads.tree import nbytes, safe_getattr

STREAM_BATCHES = 64
"""Maximum number of ready batches that are read or held."""

_STREAM_BYTES = 256 * 2**20  # maximum size of the tensors held from a stream
_SHORT = 64  # containers with more entries are taken as data, not state


def read(source: Any, limit: int, what: str) -> tuple[list[Any], bool, tuple[str, ...]]:
    """Reads up to `limit` items from a second iterator: returns the items, whether the source ended, and notes.

    Raises:
        WorkloadError: `source` is an iterator or holds one, so that reading would consume the user's items.
    """
    held: list[Any] = []
    size_bytes = 0
    ended = True
    with undisturbed(source):
        _refuse_one_shot(source, what)
        for item in iter(source):
            if len(held) == limit or (held and size_bytes > _STREAM_BYTES):
                ended = False
                break
            held.append(item)
            size_bytes += nbytes(item)
    note = f"{len(held)} {what} were read from a second iterator"
    return held, ended, (note if ended else f"{note}: if longer ones may follow, pass worst_case=",)


def known_length(sized: object) -> int | None:
    """Returns the length of an object. None if it has none or raises."""
    if not isinstance(sized, Sized):
        return None
    with suppress(TypeError, NotImplementedError):
        return len(sized)
    return None


def _refuse_one_shot(source: Any, what: str) -> None:
    first = iter(source)
    holds = [
        name
        for name, value in (safe_getattr(source, "__dict__") or {}).items()
        if isinstance(value, Iterator) and not isinstance(value, (LoaderIterator, itertools.count))
        if not isinstance(value, io.IOBase) or (not value.closed and value.readable())  # unlike a log
    ]
    if first is source or first is iter(source) or holds:
        held = f" (which holds an iterator in .{holds[0]})" if holds else ""
        raise WorkloadError(
            f"found {what} in {a_type(source)}{held} that can be iterated only once: reading them "
            "here would take them from the training; expected an object whose iter() starts again; pass "
            "the DataLoader or the re-iterable itself, or a list of batches: "
            "list(itertools.islice(batches, 8))"
        )


@contextmanager
def undisturbed(root: object) -> Iterator[None]:
    """Restores, on exit, the random generators (global ones too) and attributes of all objects that `root` holds."""
    found = list(_held(root, 4, set()))
    attributes = [(vars(node), dict(vars(node))) for node in found if isinstance(safe_getattr(node, "__dict__"), dict)]
    rewind = [partial(write, read()) for read, write in filter(None, map(generator_state, found))]
    rewind += [
        partial(torch.random.set_rng_state, torch.random.get_rng_state()),
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state()),
    ]
    try:
        yield
    finally:
        for undo in rewind:
            undo()
        for now, before in attributes:
            if now.keys() != before.keys() or any(now[name] is not before[name] for name in before):
                now.clear()
                now.update(before)


def generator_state(found: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Returns what reads and what writes the state of a random generator; None for any other object."""
    if isinstance(found, torch.Generator):
        return found.get_state, found.set_state
    if isinstance(found, random.Random) and not isinstance(found, random.SystemRandom):
        return found.getstate, found.setstate
    if isinstance(found, np.random.RandomState):
        return partial(found.get_state, legacy=False), found.set_state
    bits = found.bit_generator if isinstance(found, np.random.Generator) else found
    if isinstance(bits, np.random.BitGenerator):
        return lambda: copy.deepcopy(bits.state), partial(setattr, bits, "state")
    return None


def _held(node: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yields the object and the objects in its attributes and short containers, up to `depth` levels deep."""
    if id(node) in seen or isinstance(node, (torch.Tensor, nn.Module, ModuleType, type, str, bytes)):
        return
    seen.add(id(node))
    yield node
    inside = list(node) if isinstance(node, (list, tuple)) and len(node) <= _SHORT else []
    for table in (node if isinstance(node, dict) else {}, safe_getattr(node, "__dict__") or {}):
        inside += table.values() if len(table) <= _SHORT else ()
    for child in inside if depth else ():
        yield from _held(child, depth - 1, seen)
