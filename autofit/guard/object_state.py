"""Pieces of mutable state: one tensor, mapping, list, set or value each, saved and restored in place.

A piece is cheap to make; `save` takes the snapshot. The entries of a container (a mapping, a list) are kept by
reference, so that the same objects are restored. Their own content is saved by other pieces.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any, Protocol, cast

import torch

from autofit.guard.digest import SIMPLE, fingerprint, in_full
from autofit.torch_internals import set_version


class Piece(Protocol):
    """One piece of state. The guard calls `save` once, then the other methods any number of times."""

    name: str

    def save(self) -> None:
        """Saves the present state."""

    def restore(self) -> None:
        """Restores the saved state in place."""

    def differences(self) -> Iterator[str]:
        """Yields the names of everything that differs from the saved state."""

    def content(self) -> object:
        """Returns the present state as a value that `digest.feed` takes."""


class MappingPiece:
    """The keys, their order and the bindings of a dictionary, such as the `__dict__` of a module.

    Methods that a subclass of `dict` overrides are bypassed, since they may count or reorder.
    """

    def __init__(self, name: str, mapping: dict[Any, Any], label: Callable[[str, object], str]) -> None:
        """Makes the piece. `label(name, key)` returns the name of an entry."""
        self.name, self._mapping, self._label = name, mapping, label
        # An OrderedDict loses its order if the methods of `dict` write to it.
        self._kind: type[dict[Any, Any]] = OrderedDict if isinstance(mapping, OrderedDict) else dict
        self._kept: dict[object, object] = {}

    def save(self) -> None:
        """Saves the bindings."""
        self._kept = dict(self._kind.items(self._mapping))

    def restore(self) -> None:
        """Restores every binding in the saved order and removes added keys."""
        if next(self.differences(), None) is not None:
            self._kind.clear(self._mapping)
            for key, value in self._kept.items():
                self._kind.__setitem__(self._mapping, key, value)

    def differences(self) -> Iterator[str]:
        """Yields the entries that were added, removed or bound to another object."""
        now, kept = dict(self._kind.items(self._mapping)), self._kept
        if _identical(now.keys(), kept.keys()) and _identical(now.values(), kept.values()):
            return
        for key in [*kept, *(key for key in now if key not in kept)]:
            if not (key in kept and key in now and same(now[key], kept[key])):
                yield self._label(self.name, key)
        if now.keys() == kept.keys() and not all(map(same, now, kept)):
            yield f"{self.name} (order of its entries)"

    def content(self) -> object:
        """Returns the entries. A value that is not simple is replaced by its type."""
        return [(self._label("", key), shallow(value)) for key, value in self._kind.items(self._mapping)]


class SequencePiece:
    """The items of a list or deque. Methods that a subclass overrides are bypassed."""

    def __init__(self, name: str, items: list[Any] | deque[Any]) -> None:
        self.name, self._items = name, items
        self._kind: Any = list if isinstance(items, list) else deque
        self._kept: list[object] = []

    def save(self) -> None:
        """Saves the items."""
        self._kept = self._now()

    def restore(self) -> None:
        """Restores the items of the same list."""
        if next(self.differences(), None) is not None:
            self._kind.clear(self._items)
            self._kind.extend(self._items, self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the list's name if an item differs."""
        now = self._now()
        if not _identical(now, self._kept) and not same(tuple(now), tuple(self._kept)):
            yield self.name

    def content(self) -> object:
        """Returns the items. An item that is not simple is replaced by its type."""
        return [shallow(item) for item in self._now()]

    def _now(self) -> list[object]:
        return list(self._kind.__iter__(self._items))


class SetPiece:
    """The members of a set."""

    def __init__(self, name: str, members: set[Any]) -> None:
        self.name, self._members = name, members
        self._kept: set[object] = set()

    def save(self) -> None:
        """Saves the members."""
        self._kept = set(self._members)

    def restore(self) -> None:
        """Restores the members of the same set."""
        if self._members != self._kept:
            self._members.clear()
            self._members.update(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the set's name if its members differ."""
        if self._members != self._kept:
            yield self.name

    def content(self) -> object:
        """Returns the members. A member that is not simple is replaced by its type."""
        return {shallow(member) for member in self._members}


class ValuePiece:
    """State that is read and written as one value, such as that of a random generator."""

    def __init__(self, name: str, read: Callable[[], object], write: Callable[[Any], object] | None) -> None:
        """Makes the piece.

        Args:
            name: name that `differences` yields.
            read: returns a value that is independent of later changes.
            write: restores such a value. None for state that can only be watched.
        """
        self.name, self._read, self._write = name, read, write
        self._kept: object = None
        self._fingerprint = ""

    def save(self) -> None:
        """Saves the value, or only its fingerprint if it cannot be written."""
        value = self._read()
        self._fingerprint = fingerprint(value)
        self._kept = value if self._write is not None else None

    def restore(self) -> None:
        """Writes the saved value if the present one differs."""
        if self._write is not None and fingerprint(self._read()) != self._fingerprint:
            self._write(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the name if the value differs in any bit."""
        if fingerprint(self._read()) != self._fingerprint:
            yield self.name

    def content(self) -> object:
        """Returns the present value."""
        return self._read()


class ClassPiece:
    """The class of an object. Lazy modules and parameters change their class on the first run."""

    def __init__(self, name: str, owner: object) -> None:
        self.name, self._owner = f"{name}.__class__", owner
        self._kept = type(owner)

    def save(self) -> None:
        """Saves the class."""
        self._kept = type(self._owner)

    def restore(self) -> None:
        """Restores the class of the object."""
        if type(self._owner) is not self._kept:
            self._owner.__class__ = self._kept

    def differences(self) -> Iterator[str]:
        """Yields the name if the class differs."""
        if type(self._owner) is not self._kept:
            yield self.name

    def content(self) -> object:
        """Returns the name of the class."""
        return type(self._owner).__qualname__


class TensorPiece:
    """The state of a tensor other than its bytes: gradient, `requires_grad`, hooks, graph, version."""

    HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor = name, tensor
        self._kept: dict[str, Any] = {}
        self._version: int | None = None

    def save(self) -> None:
        """Saves the state by reference."""
        self._kept = self._state()
        self._version = None if self.tensor.data.is_inference() else self.tensor._version

    def restore(self) -> None:
        """Restores the state. Call it after the bytes are restored, because a gradient must fit its tensor.

        The version counter is restored too: a probe's optimizer step incremented it, but a graph that the user holds
        saved the tensor with the bytes that are now restored.
        """
        tensor, kept = self.tensor, self._kept
        if kept["grad_fn"] is None and tensor.grad_fn is not None:
            tensor.detach_()
        if tensor.is_leaf and tensor.requires_grad != kept["requires_grad"]:
            tensor.requires_grad = kept["requires_grad"]
        present = self._state()
        for attribute in ("grad", *self.HOOKS):
            if present[attribute] is not kept[attribute]:
                setattr(tensor, attribute, kept[attribute])
        if self._version is not None and tensor._version != self._version:
            set_version(tensor, self._version)

    def differences(self) -> Iterator[str]:
        """Yields the name of each attribute that differs, such as "model.weight.grad"."""
        present = self._state()
        for attribute, kept in self._kept.items():
            if present[attribute] is not kept:
                yield f"{self.name}.{attribute}"

    def content(self) -> object:
        """Returns the tensor and its state. The gradient has its own piece."""
        state = self._state()
        hooks = [len(state[attribute] or ()) for attribute in self.HOOKS]
        return [self.tensor, self.tensor.requires_grad, state["grad"] is None, hooks]

    def _state(self) -> dict[str, Any]:
        tensor = self.tensor
        state: dict[str, Any] = {"requires_grad": tensor.requires_grad, "grad_fn": tensor.grad_fn}
        # Reading .grad of a non-leaf tensor warns.
        state["grad"] = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        return state | {attribute: getattr(tensor, attribute, None) for attribute in self.HOOKS}


def _identical(left: Collection[object], right: Collection[object]) -> bool:
    """Returns whether both hold the same objects in the same order."""
    return len(left) == len(right) and all(map(is_, left, right))


def same(left: object, right: object) -> bool:
    """Returns whether two bindings are equal: the same object, or simple values with the same bits."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return issubclass(type(left), SIMPLE) and in_full(left) == in_full(right)


def shallow(value: object) -> object:
    """Returns a simple value unchanged, and the type name of anything else."""
    kind = type(value)  # `isinstance` would read `__class__` of the object
    if issubclass(kind, tuple):
        return tuple(map(shallow, cast("tuple[object, ...]", value)))
    return value if issubclass(kind, SIMPLE) else kind.__qualname__


UNBOUND: Any = object()
"""Value of an unbound name."""


class BindingPiece:
    """The binding of one name."""

    def __init__(
        self, name: str, read: Callable[[], Any], write: Callable[[Any], object], remove: Callable[[], object]
    ) -> None:
        """Makes the piece. `read` returns `UNBOUND` if the name is not bound."""
        self.name, self._read, self._write, self._remove = name, read, write, remove
        self._kept: Any = UNBOUND

    def save(self) -> None:
        """Saves the binding."""
        self._kept = self._read()

    def restore(self) -> None:
        """Restores the binding."""
        if next(self.differences(), None) is None:
            return
        if self._kept is UNBOUND:
            self._remove()
        else:
            self._write(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the name if it is bound to another object."""
        if not same(self._read(), self._kept):
            yield self.name

    def content(self) -> object:
        """Returns the bound value, or its type if it is not a simple value."""
        return shallow(self._read())

    def value(self) -> object:
        """Returns the bound value."""
        return self._read()


class NamesPiece:
    """The names of a namespace that code uses: globals of a module, or attributes of a class."""

    def __init__(self, name: str, read: Callable[[], MutableMapping[str, Any] | Any], owner: type | None) -> None:
        """Makes the piece.

        Args:
            name: name of the module or class.
            read: returns the namespace.
            owner: the class, whose namespace can only be written with `setattr`. None for a module.
        """
        self.name, self._read, self._owner = name, read, owner
        self.names: dict[str, None] = {}
        self._kept: dict[str, Any] = {}

    def save(self) -> None:
        """Saves the bindings."""
        namespace = self._read()
        self._kept = {name: namespace.get(name, UNBOUND) for name in self.names}

    def restore(self) -> None:
        """Restores every binding."""
        for name in self._changed():
            kept = self._kept.get(name, UNBOUND)
            if self._owner is not None and kept is UNBOUND:
                delattr(self._owner, name)
            elif self._owner is not None:
                setattr(self._owner, name, kept)
            elif kept is UNBOUND:
                del self._read()[name]
            else:
                self._read()[name] = kept

    def differences(self) -> Iterator[str]:
        """Yields the names that are bound to another object."""
        return (f"{self.name}.{name}" for name in self._changed())

    def content(self) -> object:
        """Returns the bound values, or their types if they are not simple values."""
        namespace = self._read()
        return [(name, shallow(namespace.get(name, UNBOUND))) for name in self.names]

    def _changed(self) -> list[str]:
        namespace = self._read()
        added = () if self._owner is None else (name for name in data_attributes(self._owner) if name not in self._kept)
        changed = [name for name, kept in self._kept.items() if not same(namespace.get(name, UNBOUND), kept)]
        return [*changed, *added]


def cell(name: str, found: CellType) -> BindingPiece:
    """Returns the piece for a closure variable."""

    def read() -> Any:
        try:
            return found.cell_contents
        except ValueError:  # not bound yet
            return UNBOUND

    def write(value: Any) -> None:
        found.cell_contents = value

    def remove() -> None:
        del found.cell_contents

    return BindingPiece(name, read, write, remove)


def slots(name: str, owner: object) -> Iterator[BindingPiece]:
    """Yields a piece for each slot of an object. Frozen dataclasses are written by bypassing `__setattr__`."""
    for kind in type(owner).__mro__:
        if "__slots__" in vars(kind):
            for key, member in vars(kind).items():
                if isinstance(member, MemberDescriptorType):
                    yield _slot(f"{name}.{key}", owner, member)


def _slot(name: str, owner: object, member: MemberDescriptorType) -> BindingPiece:
    def read() -> Any:
        return slot_value(owner, member)

    return BindingPiece(name, read, lambda value: member.__set__(owner, value), lambda: member.__delete__(owner))


def slot_value(owner: object, member: MemberDescriptorType) -> Any:
    """Returns the value of a slot, or `UNBOUND`."""
    try:
        return member.__get__(owner, type(owner))
    except AttributeError:
        return UNBOUND


def data_attributes(kind: type) -> dict[str, Any]:
    """Returns the attributes of a class that are data, without methods, other descriptors and special attributes."""
    return {
        key: value
        for key, value in vars(kind).items()
        if not key.startswith("__") and key != "_abc_impl" and not hasattr(type(value), "__get__")
    }


def methods(kind: type) -> Iterator[FunctionType]:
    """Yields the functions of a class: methods, static and class methods, and property accessors."""
    for value in vars(kind).values():
        for part in (
            value,
            *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "func", "__wrapped__")),
        ):
            if isinstance(part, FunctionType):
                yield part
