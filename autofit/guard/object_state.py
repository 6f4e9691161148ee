"""Pieces of mutable state: one tensor, mapping, list, set or value each, kept and put back in place.

A piece is cheap to make; `save` takes the snapshot. What holds other objects (a mapping, a list) is kept by
reference, so the very same objects come back; what they hold is a piece of its own.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from operator import is_
from typing import Any, Protocol, cast

import torch

from autofit.guard.digest import SIMPLE, fingerprint, in_full


class Piece(Protocol):
    """One piece of state. The guard calls `save` once, then the others any number of times."""

    name: str

    def save(self) -> None:
        """Keeps the present state."""

    def restore(self) -> None:
        """Puts the kept state back, in place."""

    def differences(self) -> Iterator[str]:
        """Yields the name of everything that is not as it was kept."""

    def content(self) -> object:
        """Returns the present state as a value that `digest.feed` takes."""


class MappingPiece:
    """The keys, their order and the bindings of a dictionary, such as the `__dict__` of a module.

    A dictionary of a class of its own is read and written past that class's methods, which may count or reorder.
    """

    def __init__(self, name: str, mapping: dict[Any, Any], label: Callable[[str, object], str]) -> None:
        """Makes the piece; `label(name, key)` names an entry."""
        self.name, self._mapping, self._label = name, mapping, label
        # An OrderedDict loses its order where a plain dictionary's methods write to it.
        self._kind: type[dict[Any, Any]] = OrderedDict if isinstance(mapping, OrderedDict) else dict
        self._kept: dict[object, object] = {}

    def save(self) -> None:
        """Keeps the bindings."""
        self._kept = dict(self._kind.items(self._mapping))

    def restore(self) -> None:
        """Binds every key as before, in the former order, and removes added keys."""
        if next(self.differences(), None) is not None:
            self._kind.clear(self._mapping)
            for key, value in self._kept.items():
                self._kind.__setitem__(self._mapping, key, value)

    def differences(self) -> Iterator[str]:
        """Yields the entries that were added, removed or bound to something else."""
        now, kept = dict(self._kind.items(self._mapping)), self._kept
        if _identical(now.keys(), kept.keys()) and _identical(now.values(), kept.values()):
            return
        for key in [*kept, *(key for key in now if key not in kept)]:
            if not (key in kept and key in now and same(now[key], kept[key])):
                yield self._label(self.name, key)
        if now.keys() == kept.keys() and not all(map(same, now, kept)):
            yield f"{self.name} (order of its entries)"

    def content(self) -> object:
        """Returns the entries; a value that is not simple counts by its type."""
        return [(self._label("", key), shallow(value)) for key, value in self._kind.items(self._mapping)]


class SequencePiece:
    """The items of a list or deque; one of a class of its own is read and written past that class's methods."""

    def __init__(self, name: str, items: list[Any] | deque[Any]) -> None:
        self.name, self._items = name, items
        self._kind: Any = list if isinstance(items, list) else deque
        self._kept: list[object] = []

    def save(self) -> None:
        """Keeps the items."""
        self._kept = self._now()

    def restore(self) -> None:
        """Puts the items back into the same list."""
        if next(self.differences(), None) is not None:
            self._kind.clear(self._items)
            self._kind.extend(self._items, self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the list's name when an item differs."""
        now = self._now()
        if not _identical(now, self._kept) and not same(tuple(now), tuple(self._kept)):
            yield self.name

    def content(self) -> object:
        """Returns the items; one that is not simple counts by its type."""
        return [shallow(item) for item in self._now()]

    def _now(self) -> list[object]:
        return list(self._kind.__iter__(self._items))


class SetPiece:
    """The members of a set."""

    def __init__(self, name: str, members: set[Any]) -> None:
        self.name, self._members = name, members
        self._kept: set[object] = set()

    def save(self) -> None:
        """Keeps the members."""
        self._kept = set(self._members)

    def restore(self) -> None:
        """Puts the members back into the same set."""
        if self._members != self._kept:
            self._members.clear()
            self._members.update(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the set's name when its members differ."""
        if self._members != self._kept:
            yield self.name

    def content(self) -> object:
        """Returns the members; one that is not simple counts by its type."""
        return {shallow(member) for member in self._members}


class ValuePiece:
    """A state that is read and written as one value, such as that of a random generator."""

    def __init__(self, name: str, read: Callable[[], object], write: Callable[[Any], object] | None) -> None:
        """Makes the piece.

        Args:
            name: what `differences` calls it.
            read: returns a value that later changes do not reach.
            write: puts such a value back; None for a state that can only be watched.
        """
        self.name, self._read, self._write = name, read, write
        self._kept: object = None
        self._print = ""

    def save(self) -> None:
        """Keeps the value, or only its fingerprint when it cannot be written."""
        value = self._read()
        self._print = fingerprint(value)
        self._kept = value if self._write is not None else None

    def restore(self) -> None:
        """Writes the kept value, when the present one differs."""
        if self._write is not None and fingerprint(self._read()) != self._print:
            self._write(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the name when the value differs in any bit."""
        if fingerprint(self._read()) != self._print:
            yield self.name

    def content(self) -> object:
        """Returns the present value."""
        return self._read()


class ClassPiece:
    """The class of an object: lazy modules and parameters change theirs when they first run."""

    def __init__(self, name: str, owner: object) -> None:
        self.name, self._owner = f"{name}.__class__", owner
        self._kept = type(owner)

    def save(self) -> None:
        """Keeps the class."""
        self._kept = type(self._owner)

    def restore(self) -> None:
        """Makes the object one of its former class."""
        if type(self._owner) is not self._kept:
            self._owner.__class__ = self._kept

    def differences(self) -> Iterator[str]:
        """Yields the name when the class is another one."""
        if type(self._owner) is not self._kept:
            yield self.name

    def content(self) -> object:
        """Returns the name of the class."""
        return type(self._owner).__qualname__


class TensorPiece:
    """What a tensor carries besides its bytes: gradient, `requires_grad`, hooks, graph, version."""

    HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor = name, tensor
        self._kept: dict[str, Any] = {}
        self._version: int | None = None

    def save(self) -> None:
        """Keeps what the tensor carries, by reference."""
        self._kept = self._carried()
        self._version = None if self.tensor.data.is_inference() else self.tensor._version

    def restore(self) -> None:
        """Puts everything back; to be called after the bytes, because a gradient must fit its tensor.

        The version counter returns too: the bytes are those that a graph held by the user has seen, and a
        probe's optimizer step has counted it up.
        """
        tensor, kept = self.tensor, self._kept
        if kept["grad_fn"] is None and tensor.grad_fn is not None:
            tensor.detach_()
        if tensor.is_leaf and tensor.requires_grad != kept["requires_grad"]:
            tensor.requires_grad = kept["requires_grad"]
        present = self._carried()
        for attribute in ("grad", *self.HOOKS):
            if present[attribute] is not kept[attribute]:
                setattr(tensor, attribute, kept[attribute])
        if self._version is not None and tensor._version != self._version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self._version,))

    def differences(self) -> Iterator[str]:
        """Yields the name of each thing that is not the one kept, such as "model.weight.grad"."""
        present = self._carried()
        for attribute, kept in self._kept.items():
            if present[attribute] is not kept:
                yield f"{self.name}.{attribute}"

    def content(self) -> object:
        """Returns the tensor and what it carries; the gradient is a piece of its own."""
        carried = self._carried()
        hooks = [len(carried[attribute] or ()) for attribute in self.HOOKS]
        return [self.tensor, self.tensor.requires_grad, carried["grad"] is None, hooks]

    def _carried(self) -> dict[str, Any]:
        tensor = self.tensor
        carried: dict[str, Any] = {"requires_grad": tensor.requires_grad, "grad_fn": tensor.grad_fn}
        # Reading .grad of an inner node of a graph warns.
        carried["grad"] = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        return carried | {attribute: getattr(tensor, attribute, None) for attribute in self.HOOKS}


def _identical(left: Collection[object], right: Collection[object]) -> bool:
    """Returns whether both hold the very same objects in the same order."""
    return len(left) == len(right) and all(map(is_, left, right))


def same(left: object, right: object) -> bool:
    """Returns whether two bindings are alike: the same object, or simple values with the same bits."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return issubclass(type(left), SIMPLE) and in_full(left) == in_full(right)


def shallow(value: object) -> object:
    """Returns a simple value as it is, and anything else by its type."""
    kind = type(value)  # not `isinstance`, which asks the object for its class
    if issubclass(kind, tuple):
        return tuple(map(shallow, cast("tuple[object, ...]", value)))
    return value if issubclass(kind, SIMPLE) else kind.__qualname__
