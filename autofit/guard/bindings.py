"""Bindings other than dictionary entries: closure cells, slots, class attributes and module globals."""

from collections.abc import Callable, Iterator, MutableMapping
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

from autofit.guard.object_state import same, shallow

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
        for part in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "func"))):
            if isinstance(part, FunctionType):
                yield part
