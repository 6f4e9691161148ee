"""Finds every piece of mutable state that the user's objects reach, once each, with a readable name.

The walk follows attributes, slots, containers and arrays of the user's and libraries' objects; closures, defaults,
bound arguments and bound objects of functions; globals that the user's code names (walk_rules.py); and attributes of
the user's classes. It does not follow modules and classes of libraries, or internal state of torch and Python.

A data set can be of any size. Tensors and arrays below it are copied up to `DATA_BYTES` in total, and `DATA_OBJECTS` of
its objects are followed. State beyond these limits, or that cannot be followed, is watched and named in the caveats.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.guard import walk_rules
from autofit.guard.object_state import (
    SIMPLE,
    UNBOUND,
    MappingPiece,
    NamesPiece,
    Piece,
    TensorPiece,
    ValuePiece,
    cell,
    class_of,
    data_attributes,
    members,
    methods,
    sequence,
    slots,
)
from autofit.guard.tensor_state import ArrayPiece, SamplesPiece, array_parts, value_piece
from autofit.guard.unguarded import Unguarded, many_samples
from autofit.guard.walk_rules import Origin, namespaces, origin_of
from autofit.torch_internals import is_traceable_wrapper_subclass

Optimizers = torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an object was found.

    Attributes:
        of_user: whether it is held by the user's code or object. Only then is it named if it cannot be followed.
        data: whether it is below a data set, where size limits apply.
        held: whether it was reached through a function or a plain object, and is not part of the model, optimizer or
            loader.
    """

    of_user: bool = True
    data: bool = False
    held: bool = False


class Walk:
    """The pieces of state below some roots.

    Attributes:
        pieces: all pieces, in the order found.
        held: the pieces that were reached through a function or a plain object.
        unguarded: state that is only watched.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.held: list[Piece] = []
        self.unguarded = Unguarded()
        # Holding the objects prevents their ids from being reused during the walk.
        self._seen: dict[int, object] = {}
        self._position: dict[int, int] = {}  # of a parameter in its optimizer
        self._names: dict[int, NamesPiece] = {}
        self._todo: deque[tuple[str, object, Whereabouts]] = deque()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: Optimizers | None,
        loader: object,
        extras: Mapping[str, object] | None,
        functions: Mapping[str, object] | None = None,
    ) -> Self:
        """Returns the walk over what a `Guard` takes. Nothing is copied, changed or iterated.

        Extras are also restored through their `state_dict` if they have one.
        """
        walk = cls()
        walk.look("model", model)
        walk.look("optimizer", optimizer)
        for name, extra in (extras or {}).items():
            walk._add_state_dict(name, extra)
            walk.look(name, extra)
        walk.look("loader", loader, Whereabouts(data=isinstance(loader, (list, tuple))))
        walk.pieces += loader_pieces(loader)
        for name, function in (functions or {}).items():
            walk.look(name, function, Whereabouts(held=True))
        return walk

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the tensors that have storage of their own, with their names."""
        found = [(piece.name, piece.tensor) for piece in self.pieces if isinstance(piece, TensorPiece)]
        return [(name, tensor) for name, tensor in found if not is_traceable_wrapper_subclass(tensor)]

    def look(self, name: str, root: object, place: Whereabouts = Whereabouts()) -> None:
        """Finds everything below one root, breadth first, so that the shortest path to an object is its name."""
        self._todo.append((name, root, place))
        while self._todo:
            each, found, where = self._todo.popleft()
            try:
                self._visit(each, found, where)
            except Exception as error:  # noqa: BLE001  # an object that raises when it is inspected must not stop the search
                what = f"an object of type {type(found).__qualname__}; inspecting it raised {type(error).__name__}"
                self.unguarded.cannot_follow(each, found, what, of_user=True)

    def _add_state_dict(self, name: str, extra: object) -> None:
        if hasattr(extra, "state_dict") and not isinstance(extra, (*walk_rules.FAMILIES, torch.Generator)):
            load = getattr(extra, "load_state_dict", None)
            write = None if load is None else (lambda kept: load(copy.deepcopy(kept)))
            read = extra.state_dict
            self.pieces.append(ValuePiece(f"{name}.state_dict()", lambda: copy.deepcopy(read()), write))
            if load is not None:
                self.unguarded.covered_by(extra)

    def _visit(self, name: str, found: Any, place: Whereabouts) -> None:
        """Records one object, unless it is immutable or already seen, and queues the objects it holds."""
        # `isinstance` would read `__class__` of the object, which raises for a dead proxy.
        if issubclass(type(found), walk_rules.IMMUTABLE) or id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if isinstance(found, torch.Tensor):
            self._visit_tensor(name, found, place)
        elif isinstance(found, FunctionType):
            self._visit_function(name, found, replace(place, held=True))
        elif isinstance(found, type):
            self._visit_class(found, place)
        elif parts := walk_rules.unwrapped(found):
            self.unguarded.watch(name, found)
            self._push_all(((f"{name}{end}", part) for end, part in parts), replace(place, held=True))
        elif isinstance(found, np.ndarray):
            self._visit_array(name, found, place)
        elif (value := value_piece(name, found)) is not None:
            self._add(value, place)
        else:
            self._visit_object(name, found, place)

    def _visit_array(self, name: str, found: Any, place: Whereabouts) -> None:
        """Records the elements of an array, and the attributes of an array subclass, such as a mask."""
        self._push_all(((name, part) for part in array_parts(found)), place)
        if self.unguarded.may_copy_array(name, found, place.data):
            self._add(ArrayPiece(name, found), place)
            self._follow_attributes(name, found, place, place)

    def _visit_object(self, name: str, found: Any, place: Whereabouts) -> None:
        """Records a container, an object with attributes, or both. Any other object may be named in the caveats."""
        if isinstance(found, walk_rules.CONTAINERS):
            self._visit_container(name, found, place)
        if nature := walk_rules.nature(found):
            self.unguarded.cannot_follow(name, found, nature, place.of_user)
            return
        self.unguarded.watch(name, found)
        if walk_rules.is_followed(found) and self.unguarded.may_follow(name, place.data or not place.of_user):
            self._follow(name, found, place)

    def _follow(self, name: str, found: Any, place: Whereabouts) -> None:
        """Records the attributes of an object and of its class, and queues their values."""
        family, origin = isinstance(found, walk_rules.FAMILIES), origin_of(type(found))
        if isinstance(found, torch.optim.Optimizer):  # numbered as in its `state_dict`
            parameters = [p for group in found.param_groups for p in group["params"]]
            self._position |= {id(p): index for index, p in enumerate(parameters)}
        if isinstance(found, nn.Module):
            self._add(class_of(name, found), place)
        module = isinstance(found, (nn.Module, torch.optim.Optimizer))
        if module and (place.data or place.held):  # it is trained, wherever it was found
            place = replace(place, data=False, held=False)
        below = Whereabouts(
            of_user=family or origin is Origin.USER or (origin is Origin.STANDARD and place.of_user),
            data=place.data or isinstance(found, Dataset),
            held=place.held or not family,
        )
        for kind in type(found).__mro__:
            if origin_of(kind) is Origin.USER:
                self._todo.append((kind.__qualname__, kind, replace(below, held=True)))
        if isinstance(found, torch.jit.ScriptModule):  # its state is in C++, outside its `__dict__`
            self._add(ValuePiece(f"{name}.training", lambda: found.training, found.train), below)
            held = (found.named_parameters(recurse=False), found.named_buffers(recurse=False), found.named_children())
            self._push_all(((f"{name}.{key}", value) for each in held for key, value in each), below)
        for piece in slots(name, found):
            self._add(piece, place)
            self._todo.append((piece.name, piece.read(), below))
        self._follow_attributes(name, found, place, below)

    def _follow_attributes(self, name: str, found: object, place: Whereabouts, below: Whereabouts) -> None:
        attributes = getattr(found, "__dict__", None)
        if isinstance(attributes, dict):
            self._add(MappingPiece(name, attributes, self._label), place)
            for key, value in list(attributes.items()):
                self._push_attribute(name, key, value, found, below)

    def _push_attribute(self, name: str, key: str, value: Any, owner: object, place: Whereabouts) -> None:
        label = self._label(name, key)
        if key.startswith("_") and origin_of(type(owner)) is not Origin.USER:
            place = replace(place, of_user=False)
        if isinstance(owner, nn.Module) and key in ("_parameters", "_buffers", "_modules"):
            label = name
        if isinstance(owner, DataLoader) and key == "_iterator":
            if value is not None:
                self.pieces.append(progress_piece(label, value))
            return
        if isinstance(owner, (DataLoader, Sampler)) and key in walk_rules.DATA_KEYS:
            place = replace(place, data=True)
        self._todo.append((label, value, place))

    def _visit_function(self, name: str, found: FunctionType, place: Whereabouts) -> None:
        """Records the closure, defaults, attributes and named globals of a function."""
        place = replace(place, of_user=origin_of(found) is Origin.USER)
        self._add(MappingPiece(name, found.__dict__, self._label), place)
        self._push_all([(f"{name}.{key}", value) for key, value in found.__dict__.items()], place)
        if origin_of(found) not in (Origin.USER, Origin.LIBRARY):
            return  # its closure holds no user state
        for variable, kept in zip(found.__code__.co_freevars, found.__closure__ or (), strict=True):
            piece = cell(f"{name}.{variable}", kept)
            self._add(piece, place)
            self._todo.append((piece.name, piece.read(), place))
        for defaults in (found.__defaults__, found.__kwdefaults__):
            self._todo.append((f"{name} (default)", defaults, place))
        for module, namespace, names in namespaces(found):
            self._visit_names(module, namespace, names, None, place)

    def _visit_class(self, found: type, place: Whereabouts) -> None:
        """Records the attributes of a user's class, and the state that its methods hold."""
        if origin_of(found) is not Origin.USER or issubclass(found, SIMPLE):
            return
        place = replace(place, of_user=True, held=True)
        self._visit_names(found.__qualname__, vars(found), tuple(data_attributes(found)), found, place)
        self._push_all(((f"{found.__qualname__}.{method.__name__}", method) for method in methods(found)), place)

    def _visit_names(
        self, name: str, namespace: Any, names: tuple[str, ...], owner: type | None, place: Whereabouts
    ) -> None:
        """Records names of a module or class, and queues their values."""
        key = id(namespace) if owner is None else id(owner)
        piece = self._names.get(key)
        if piece is None:
            self._seen[id(namespace)] = namespace
            piece = self._names[key] = NamesPiece(name, namespace, owner)
            self._add(piece, place)
        for each in names:
            if each not in piece.names:
                piece.names[each] = None
                if (value := namespace.get(each, UNBOUND)) is not UNBOUND:
                    self._todo.append((f"{name}.{each}", value, place))

    def _visit_container(self, name: str, found: Any, place: Whereabouts) -> None:
        """Records a container, and queues its values or items."""
        if isinstance(found, dict):
            self._add(MappingPiece(name, found, self._label), place)
        elif isinstance(found, (list, deque)):
            self._add(sequence(name, found), place)
        elif isinstance(found, set):
            self._add(members(name, found), place)
        entries = walk_rules.entries(found)
        if place.data and (samples := many_samples(entries)):
            if self.unguarded.may_copy(name, samples, data=True):
                self._add(SamplesPiece(name, samples), place)
            return
        if not self.unguarded.may_enter(name, entries, place.of_user):
            return
        items = list(dict.items(found) if isinstance(found, dict) else enumerate(entries))
        keys = [key for key, _ in items if isinstance(key, nn.Module)]
        self._push_all([(f"{self._label(name, key)} (key)", key) for key in keys], place)
        self._push_all([(self._label(name, key), value) for key, value in items], place)

    def _visit_tensor(self, name: str, tensor: torch.Tensor, place: Whereabouts) -> None:
        """Records a tensor, its gradient, its hooks and the attributes set on it."""
        if walk_rules.has_no_storage(tensor):
            self.unguarded.cannot_follow(name, tensor, "a tensor without storage of its own", place.of_user)
            return
        if not self.unguarded.may_copy(name, [tensor], place.data):
            return
        self._add(TensorPiece(name, tensor), place)
        if place.data and type(tensor) is torch.Tensor and tensor.is_leaf and not tensor.requires_grad:
            return  # one of many samples, without gradient or hooks
        self._add(class_of(name, tensor), place)
        if is_traceable_wrapper_subclass(tensor):
            for attribute in tensor.__tensor_flatten__()[0]:
                self._todo.append((f"{name}.{attribute}", getattr(tensor, attribute), place))
        for attribute in TensorPiece.HOOKS:
            self._todo.append((f"{name}.{attribute}", getattr(tensor, attribute, None), place))
        if tensor.is_leaf or tensor.retains_grad:
            self._todo.append((f"{name}.grad", tensor.grad, place))
        self._add(MappingPiece(name, vars(tensor), self._label), place)
        self._push_all([(self._label(name, key), value) for key, value in vars(tensor).items()], place)

    def _label(self, name: str, key: object) -> str:
        """Names an entry: by attribute, by index, or by a parameter's number in its optimizer."""
        if isinstance(key, str):
            return f"{name}.{key}"
        if isinstance(key, torch.Tensor):
            return f"{name}[{self._position.get(id(key), '?')}]"
        return f"{name}[{key!r}]" if isinstance(key, SIMPLE) else f"{name}[{type(key).__qualname__}]"

    def _push_all(self, found: Iterable[tuple[str, object]], place: Whereabouts) -> None:
        self._todo.extend((name, value, place) for name, value in found)

    def _add(self, piece: Piece, place: Whereabouts) -> None:
        self.pieces.append(piece)
        if place.held:
            self.held.append(piece)


def loader_pieces(loader: Any) -> Iterator[ValuePiece]:
    """Yields the pieces that watch a loader's position.

    A loader's `load_state_dict` discards its running iterator, so it cannot restore one. Without a running iterator,
    some loaders start one in `state_dict`, which draws from the random generators.
    """
    if hasattr(loader, "_num_yielded"):
        yield progress_piece("loader", loader)
    if hasattr(loader, "state_dict"):
        yield ValuePiece(
            "loader.state_dict()",
            lambda: None if getattr(loader, "_iterator", loader) is None else loader.state_dict(),
            None,
        )


def progress_piece(name: str, iterator: Any) -> ValuePiece:
    """Returns the piece that watches the position of a loader's running iterator, which cannot be rewound."""
    return ValuePiece(name, lambda: getattr(iterator, "_num_yielded", None), None)
