"""Pieces of mutable state: one tensor, mapping, list, set or value each, saved and restored in place.

A piece is cheap to make; `save` takes the snapshot. The entries of a container (a mapping, a list) are kept by
reference, so that the same objects are restored. Their own content is saved by other pieces.

Values are compared by their bits, with a fingerprint: `==` says that 0.0 equals -0.0, and that nan differs from itself.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import partial
from itertools import chain
from operator import eq, is_
from types import CellType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from autofit.torch_internals import is_traceable_wrapper_subclass, set_version
from autofit.workloads.tree import pieces

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Update: TypeAlias = "Callable[[Buffer], object]"
# Immutable values that their repr describes completely.
SIMPLE = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def in_full(value: object) -> str:
    """Returns the complete text of a simple value. Large integers are in hexadecimal: Python limits decimal digits."""
    return hex(value) if isinstance(value, int) and abs(value) >= 2**63 else repr(value)


def fingerprint(value: object) -> str:
    """Returns the SHA-256 of a nested value, in hexadecimal."""
    sink = hashlib.sha256()
    feed(sink.update, value)
    return sink.hexdigest()


def feed(update: Update, value: object) -> None:
    """Feeds a nested value to `update` of a `hashlib` object: simple values, tensors, arrays and containers of them.

    For an object of another type only the type is fed, since its address does not describe its state.
    """
    if issubclass(type(value), SIMPLE):  # `isinstance` would read `__class__` of the object
        _feed_text(update, f"{type(value).__qualname__}:{in_full(value)}")
    elif isinstance(value, torch.Tensor):
        _feed_tensor(update, value)
    elif isinstance(value, np.ndarray):
        _feed_text(update, f"array:{value.dtype}:{value.shape}")
        update(value.tobytes())
    elif isinstance(value, (set, frozenset)):
        _feed_text(update, f"set:{sorted(fingerprint(item) for item in value)}")
    elif isinstance(value, (list, tuple, deque)) and set(map(type, value)) == {int}:
        # Such as a random generator's state, whose 625 integers one text describes.
        _feed_text(update, f"{type(value).__qualname__} of int:{' '.join(map(in_full, value))}")
    elif isinstance(value, (Mapping, list, tuple, deque)):
        _feed_text(update, f"{'mapping' if isinstance(value, Mapping) else type(value).__qualname__}:{len(value)}")
        for item in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
            feed(update, item)
    else:
        _feed_text(update, f"object:{type(value).__module__}.{type(value).__qualname__}")


def _feed_text(update: Update, text: str) -> None:
    """Feeds one text with its length, so that the boundary between texts is unambiguous."""
    data = text.encode(errors="surrogatepass")
    update(len(data).to_bytes(8, "little") + data)


def _feed_tensor(update: Update, tensor: torch.Tensor) -> None:
    """Feeds a tensor's type, layout and bytes. A tensor without data (meta, freed by sharding) has no bytes."""
    _feed_text(update, f"{type(tensor).__qualname__}:{tensor.dtype}:{tensor.device}:{tensor.layout}")
    if is_traceable_wrapper_subclass(tensor):
        for attribute in tensor.__tensor_flatten__()[0]:
            feed(update, getattr(tensor, attribute))
    elif len(parts := pieces(tensor.detach())) > 1:
        coalesced = tensor.layout is torch.sparse_coo and tensor.is_coalesced()
        _feed_text(update, f"{tuple(tensor.shape)}:{coalesced}")
        for part in parts:
            _feed_tensor(update, part)
    elif tensor.layout is torch.strided:
        raw = tensor.data
        _feed_text(update, f"{tuple(raw.shape)}:{raw.stride()}")
        if raw.device.type != "meta" and raw.untyped_storage().nbytes() > 0:
            plain = raw.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            update(plain.view(torch.uint8).numpy().data)
    else:
        _feed_tensor(update, tensor.detach().to_dense())


CONTAINER, VALUE, BYTES, LAYOUT, PROCESS = range(5)
"""The order of restoring. First containers, which restore the tensor objects. Then values, some of which are written by
the user's code. Then the bytes of tensors, and what depends on a tensor's layout. Last the process, since the steps
before may have used its random generators."""
UNBOUND: Any = object()
"""Value of an unbound name."""


def same(left: object, right: object) -> bool:
    """Returns whether two bindings are equal: the same object, or simple values with the same bits."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return issubclass(type(left), SIMPLE) and in_full(left) == in_full(right)


class Piece:
    """One piece of state. The guard calls `save` once, then the other methods any number of times.

    Attributes:
        order: when it is restored.
        read: returns its present state.
        untouched: whether the last `restore` found no difference, so that no further comparison is needed.
    """

    untouched = False

    def __init__(
        self,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], object],
        is_same: Callable[[Any, Any], bool] = same,
        order: int = CONTAINER,
    ) -> None:
        """Makes the piece. `read` returns a state that is independent of later changes; `write` restores it."""
        self.name, self.read, self.order = name, read, order
        self._write, self._is_same = write, is_same
        self._kept: Any = UNBOUND

    def save(self) -> None:
        """Saves the present state."""
        self._kept = self.read()

    def restore(self) -> None:
        """Restores the saved state in place if the present one differs."""
        if next(self.differences(), None) is not None:
            self._write(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the names of everything that differs from the saved state."""
        if not self._is_same(self.read(), self._kept):
            yield self.name


class MappingPiece(Piece):
    """The keys, their order and the bindings of a dictionary, such as the `__dict__` of a module.

    Methods that a subclass of `dict` overrides are bypassed, since they may count or reorder.
    """

    def __init__(self, name: str, mapping: dict[Any, Any], label: Callable[[str, object], str]) -> None:
        """Makes the piece. `label(name, key)` returns the name of an entry."""
        # An OrderedDict loses its order if the methods of `dict` write to it.
        kind: type[dict[Any, Any]] = OrderedDict if isinstance(mapping, OrderedDict) else dict

        def write(kept: dict[Any, Any]) -> None:
            kind.clear(mapping)
            for key, value in kept.items():
                kind.__setitem__(mapping, key, value)

        super().__init__(name, lambda: dict(kind.items(mapping)), write)
        self._label = label

    def differences(self) -> Iterator[str]:
        """Yields the entries that were added, removed or bound to another object."""
        now, kept = self.read(), self._kept
        if _identical(now.keys(), kept.keys()) and _identical(now.values(), kept.values()):
            return
        for key in [*kept, *(key for key in now if key not in kept)]:
            if not (key in kept and key in now and same(now[key], kept[key])):
                yield self._label(self.name, key)
        if now.keys() == kept.keys() and not all(map(same, now, kept)):
            yield f"{self.name} (order of its entries)"


def sequence(name: str, items: list[Any] | deque[Any]) -> Piece:
    """Returns the piece for the items of a list or deque. Methods that a subclass overrides are bypassed."""
    kind: Any = list if isinstance(items, list) else deque

    def write(kept: list[object]) -> None:
        kind.clear(items)
        kind.extend(items, kept)

    def is_same(now: list[object], kept: list[object]) -> bool:
        return _identical(now, kept) or same(tuple(now), tuple(kept))

    return Piece(name, lambda: list(kind.__iter__(items)), write, is_same)


def members(name: str, found: set[Any]) -> Piece:
    """Returns the piece for the members of a set."""

    def write(kept: set[object]) -> None:
        found.clear()
        found.update(kept)

    return Piece(name, lambda: set(found), write, eq)


def class_of(name: str, owner: object) -> Piece:
    """Returns the piece for the class of an object. Lazy modules and parameters change their class on the first run."""

    def write(kept: Any) -> None:
        owner.__class__ = kept

    return Piece(f"{name}.__class__", lambda: type(owner), write, is_, LAYOUT)


class ValuePiece(Piece):
    """State that is read and written as one value, such as that of a random generator."""

    def __init__(
        self, name: str, read: Callable[[], object], write: Callable[[Any], object] | None, order: int = VALUE
    ) -> None:
        """Makes the piece. `write` is None for state that can only be watched: then only a fingerprint is kept."""
        super().__init__(name, read, write or (lambda kept: None), order=order)
        self._is_kept = write is not None
        self._fingerprint = ""

    def save(self) -> None:
        """Saves the value, or only its fingerprint if it cannot be written."""
        value = self.read()
        self._fingerprint = fingerprint(value)
        self._kept = value if self._is_kept else None

    def differences(self) -> Iterator[str]:
        """Yields the name if the value differs in any bit."""
        if fingerprint(self.read()) != self._fingerprint:
            yield self.name


class TensorPiece(Piece):
    """The state of a tensor other than its bytes: gradient, `requires_grad`, hooks, graph, version."""

    HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, self._state, self._put_back, order=LAYOUT)
        self.tensor, self._version = tensor, 0

    def save(self) -> None:
        """Saves the state by reference."""
        super().save()
        self._version = -1 if self.tensor.data.is_inference() else self.tensor._version

    def restore(self) -> None:
        """Restores the state, and the version counter.

        A probe's optimizer step incremented the counter, but a graph that the user holds saved the tensor with the
        bytes that are now restored.
        """
        super().restore()
        if self._version not in (-1, self.tensor._version):
            set_version(self.tensor, self._version)

    def differences(self) -> Iterator[str]:
        """Yields the name of each attribute that differs, such as "model.weight.grad"."""
        present = self.read()
        return (f"{self.name}.{key}" for key, kept in self._kept.items() if present[key] is not kept)

    def _put_back(self, kept: Mapping[str, Any]) -> None:
        """Restores the state. The bytes come before, because a gradient must fit its tensor."""
        tensor = self.tensor
        if kept["grad_fn"] is None and tensor.grad_fn is not None:
            tensor.detach_()
        if tensor.is_leaf and tensor.requires_grad != kept["requires_grad"]:
            tensor.requires_grad = kept["requires_grad"]
        present = self.read()
        for attribute in ("grad", *self.HOOKS):
            if present[attribute] is not kept[attribute]:
                setattr(tensor, attribute, kept[attribute])

    def _state(self) -> dict[str, Any]:
        tensor = self.tensor
        state: dict[str, Any] = {"requires_grad": tensor.requires_grad, "grad_fn": tensor.grad_fn}
        # Reading .grad of a non-leaf tensor warns.
        state["grad"] = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
        return state | {attribute: getattr(tensor, attribute, None) for attribute in self.HOOKS}


def _identical(left: Collection[object], right: Collection[object]) -> bool:
    """Returns whether both hold the same objects in the same order."""
    return len(left) == len(right) and all(map(is_, left, right))


class NamesPiece(Piece):
    """The names of a namespace that code uses: globals of a module, or attributes of a class.

    Attributes:
        names: the names; the walk adds to them.
    """

    def __init__(self, name: str, namespace: dict[str, Any], owner: type | None) -> None:
        """Makes the piece. `owner` is the class, whose namespace needs `setattr` to be written; None for a module."""
        self.names: dict[str, None] = {}
        super().__init__(name, lambda: {key: namespace.get(key, UNBOUND) for key in self.names}, self._put_back)
        self._namespace, self._owner = namespace, owner

    def differences(self) -> Iterator[str]:
        """Yields the names that are bound to another object."""
        return (f"{self.name}.{name}" for name in self._changed())

    def _put_back(self, kept: Mapping[str, Any]) -> None:
        for name in self._changed():
            value = kept.get(name, UNBOUND)
            if self._owner is not None and value is UNBOUND:
                delattr(self._owner, name)
            elif self._owner is not None:
                setattr(self._owner, name, value)
            elif value is UNBOUND:
                del self._namespace[name]
            else:
                self._namespace[name] = value

    def _changed(self) -> list[str]:
        now = self.read()
        added = () if self._owner is None else (name for name in data_attributes(self._owner) if name not in self._kept)
        return [*(name for name, kept in self._kept.items() if not same(now.get(name, UNBOUND), kept)), *added]


def cell(name: str, found: CellType) -> Piece:
    """Returns the piece for a closure variable."""

    def read() -> Any:
        try:
            return found.cell_contents
        except ValueError:  # not bound yet
            return UNBOUND

    def write(kept: Any) -> None:
        if kept is UNBOUND:
            del found.cell_contents
        else:
            found.cell_contents = kept

    return Piece(name, read, write)


def slots(name: str, owner: object) -> Iterator[Piece]:
    """Yields a piece for each slot of an object. Frozen dataclasses are written by bypassing `__setattr__`."""

    def write(member: MemberDescriptorType, kept: Any) -> None:
        if kept is UNBOUND:
            member.__delete__(owner)
        else:
            member.__set__(owner, kept)

    for kind in type(owner).__mro__:
        if "__slots__" in vars(kind):
            for key, member in vars(kind).items():
                if isinstance(member, MemberDescriptorType):
                    yield Piece(f"{name}.{key}", partial(_slot_value, owner, member), partial(write, member))


def _slot_value(owner: object, member: MemberDescriptorType) -> Any:
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
        parts = (getattr(value, name, None) for name in ("__func__", "fget", "fset", "func", "__wrapped__"))
        yield from (part for part in (value, *parts) if isinstance(part, FunctionType))
