"""Nested batch structures: walking and rebuilding them.

A batch is a tensor, or tensors inside mappings, sequences, named tuples, dataclasses (frozen ones too) and objects with
a `.to()` method. `torch.utils._pytree` treats the last two, and custom mapping classes, as leaves.
"""

import copy
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.torch_internals import is_traceable_wrapper_subclass

Batch: TypeAlias = Any


def tensors(batch: Batch) -> Iterator[torch.Tensor]:
    """Yields every tensor of a batch, in the order of its structure.

    Raises:
        WorkloadError: the batch contains itself or is nested without end.
    """
    try:
        yield from _tensors(batch)
    except RecursionError:
        raise WorkloadError(
            f"found a batch of type {type(batch).__name__} that contains itself or is nested without end; expected "
            "tensors in mappings, sequences or dataclasses; remove the reference to the batch itself in the collate_fn"
        ) from None


def _tensors(batch: Batch) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    for child in (children(batch) or {}).values():
        yield from _tensors(child)


def map_tensors(batch: Batch, fn: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Returns a new structure with `fn` applied to every tensor.

    Types are kept. Mutable containers are always new, so that changing the result does not change `batch`. Leaves other
    than tensors are the same objects.
    """
    if isinstance(batch, torch.Tensor):
        return fn(batch)
    kids = children(batch)
    if kids is None:
        return batch
    return rebuilt(batch, {key: map_tensors(child, fn) for key, child in kids.items()})


def safe_getattr(node: Any, name: str) -> Any:
    """Returns an attribute of a user's object. None if it has none or the lookup raises.

    A dict whose `__getattr__` is `__getitem__` raises a KeyError; a placeholder for a missing package, an ImportError.
    """
    try:
        return getattr(node, name, None)
    except Exception:  # noqa: BLE001  # the user's code
        return None


def children(node: Any) -> dict[Any, Any] | None:
    """Returns the contents of a container by key, index or attribute. None for a tensor or any other leaf."""
    if isinstance(node, torch.Tensor):
        return None
    if isinstance(node, Mapping):
        return dict(node.items())
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    if isinstance(node, (type, nn.Module)):
        return None
    if not dataclasses.is_dataclass(node) and not callable(safe_getattr(node, "to")):
        return None
    slots = (getattr(cls, "__slots__", ()) for cls in type(node).__mro__)
    names = [name for group in slots for name in ((group,) if isinstance(group, str) else group)]
    held = {name: getattr(node, name) for name in names if name[:2] != "__" and hasattr(node, name)}
    return {**getattr(node, "__dict__", {}), **held} or None


def rebuilt(node: Any, kids: dict[Any, Any]) -> Any:
    """Returns a container of the type of `node` with the contents `kids`, as returned by `children`."""
    if isinstance(node, (list, tuple)):
        return sequence(node, list(kids.values()))
    if isinstance(node, Mapping) and not isinstance(node, dict) and not hasattr(type(node), "__copy__"):
        # A plain copy of a custom mapping may share its inner dict with the original.
        return type(node)(kids)  # type: ignore[call-arg]  # Mapping has no __init__ in typing; mappings take a dict
    clone: Any = copy.copy(node)
    if isinstance(node, Mapping):
        for key, value in kids.items():
            clone[key] = value
        if getattr(node, "__dict__", None) is node:  # its keys are its attributes, as in `self.__dict__ = self`
            object.__setattr__(clone, "__dict__", clone)
        return clone
    for name, value in kids.items():
        object.__setattr__(clone, name, value)  # a frozen dataclass refuses setattr
    return clone


def sequence(node: Any, items: list[Any]) -> Any:
    """Returns a list, tuple or named tuple of the type of `node` that holds `items`."""
    if type(node) is list:
        return items
    if isinstance(node, list):
        clone = copy.copy(node)
        clone[:] = items
        return clone
    if len(items) == len(node) and all(new is old for new, old in zip(items, node, strict=True)):
        return node
    return node._make(items) if hasattr(type(node), "_make") else type(node)(items)


def nbytes(batch: Batch) -> int:
    """Returns the total size of the tensors of a batch in bytes."""
    return sum(piece.nbytes for tensor in tensors(batch) for piece in pieces(tensor))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors hold the same values. Sparse ones must also hold them in the same order."""
    if one is other or one.layout is not other.layout or one.shape != other.shape:
        return one is other
    if one.layout is torch.strided:
        return torch.equal(one, other)
    return all(map(torch.equal, pieces(one), pieces(other)))


def pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the tensors that a sparse tensor or a tensor subclass is made of. Any other tensor is returned alone.

    A sharded tensor is made of the part on this rank, and of a mesh, which is left out.
    """
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        found = (getattr(tensor, name) for name in names)
        return tuple(piece for part in found if isinstance(part, torch.Tensor) for piece in pieces(part))
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def live_tensors() -> list[torch.Tensor]:
    """Returns the tensors that are alive, as far as Python's garbage collection tracks them.

    They refer to their class. A list of all objects would do harm: a tuple that another thread is making fails if
    anything refers to it (CPython issue 39117).
    """
    kinds, waiting = set[type](), [torch.Tensor]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        waiting += [each for each in type.__subclasses__(kind) if each not in kinds]
    # isinstance() would ask objects of the user's for their class.
    return [each for each in gc.get_referrers(*kinds) if issubclass(type(each), torch.Tensor)]
