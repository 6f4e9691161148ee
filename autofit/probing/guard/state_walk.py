"""Finds every piece of mutable state that the user's objects reach, once each, with a name a person can read.

Modules, optimizers, schedulers, scalers, loaders and samplers are followed through all their attributes and
containers. Another object that one of them holds (a configuration, say) is looked at one level deep. Of a
data set only its random generators count: it can be of any size, and no probe has reason to write to it.
"""

import copy
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from random import Random
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.data import DataLoader, Sampler

from autofit.probing.guard.digest import SIMPLE
from autofit.probing.guard.object_state import (
    ClassPiece,
    MappingPiece,
    Piece,
    SequencePiece,
    SetPiece,
    TensorPiece,
    ValuePiece,
)

_FOLLOWED = (nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, DataLoader, Sampler)
_NOT_STATE = (type, types.ModuleType, types.FunctionType, types.MethodType, weakref.ref)
# In a loader, a longer container holds data or indices, not samplers and inner loaders.
_LOADER_CONTAINER_LIMIT = 64
_DATASET_KEYS = ("dataset", "data_source")


class Walk:
    """The pieces of state below some roots.

    Attributes:
        pieces: every piece, in the order found.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        loader: object,
        extras: Mapping[str, object] | None,
    ) -> None:
        """Finds the pieces; nothing is copied, changed or iterated."""
        self.pieces: list[Piece] = []
        # Holding the objects keeps their ids from being given to others during the walk.
        self._seen: dict[int, object] = {}
        self._position: dict[int, int] = {}
        self._data = True
        self._visit("model", model)
        self._visit("optimizer", optimizer)
        for name, extra in (extras or {}).items():
            self._visit_root(name, extra)
        self._data = False
        self._visit_root("loader", loader)
        if isinstance(loader, (list, tuple)) and loader:
            self._watch("loader (first or last batch)", lambda: [loader[0], loader[-1]])

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns the tensors that have bytes of their own, with their names."""
        found = [(piece.name, piece.tensor) for piece in self.pieces if isinstance(piece, TensorPiece)]
        return [(name, tensor) for name, tensor in found if not is_traceable_wrapper_subclass(tensor)]

    def _visit_root(self, name: str, root: object) -> None:
        """Follows an object that the user named, whatever its class."""
        if id(root) not in self._seen and _is_plain(root) and hasattr(root, "__dict__"):
            self._seen[id(root)] = root
            self._follow(name, root)
        self._visit(name, root)
        if hasattr(root, "_num_yielded"):
            self._visit_iterator(name, root)
        known = self._data and isinstance(root, (*_FOLLOWED, torch.Generator))
        if hasattr(root, "state_dict") and not known:
            self._visit_state_dict(name, root)

    def _visit_state_dict(self, name: str, root: Any) -> None:
        """Records what an object says of itself; a loader is only watched.

        A loader's `load_state_dict` throws its running iterator away, so it is no way to put one back.
        """
        name = f"{name}.state_dict()"
        if not self._data:
            # Without a running iterator some loaders start one to answer, which draws from the generators.
            self._watch(name, lambda: None if getattr(root, "_iterator", root) is None else root.state_dict())
            return
        load = getattr(root, "load_state_dict", None)
        write = None if load is None else (lambda kept: load(copy.deepcopy(kept)))
        self.pieces.append(ValuePiece(name, lambda: copy.deepcopy(root.state_dict()), write))

    def _visit(self, name: str, found: object) -> None:
        """Records one object and what it holds, unless it is immutable or was seen before."""
        if isinstance(found, (*SIMPLE, *_NOT_STATE)) or id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if isinstance(found, torch.Tensor):
            self._visit_tensor(name, found)
        elif isinstance(found, _FOLLOWED):
            self._follow(name, found)
        elif (value := _as_value(name, found, self._data)) is not None:
            self.pieces.append(value)
        elif isinstance(found, (MutableMapping, list, deque, set, tuple)):
            self._visit_container(name, found)
        elif _is_plain(found) and hasattr(found, "__dict__"):
            self.pieces.append(MappingPiece(name, vars(found), self._label))

    def _follow(self, name: str, found: object) -> None:
        """Records the class and all attributes of an object, and visits what they hold."""
        if isinstance(found, torch.optim.Optimizer):
            self._number_parameters(found)
        if isinstance(found, nn.Module):
            self.pieces.append(ClassPiece(name, found))
        self.pieces.append(MappingPiece(name, vars(found), self._label))
        data, self._data = self._data, self._data and not isinstance(found, (DataLoader, Sampler))
        for key, value in list(vars(found).items()):
            if isinstance(found, nn.Module) and key in ("_parameters", "_buffers", "_modules"):
                self._visit_container(name, value)
            elif key == "_iterator" and not self._data:
                self._visit_iterator(f"{name}.{key}", value)
            elif key in _DATASET_KEYS and not self._data:
                self._visit_dataset(f"{name}.{key}", value)
            else:
                self._visit(self._label(name, key), value)
        self._data = data

    def _visit_container(self, name: str, found: Any) -> None:
        """Records a container, and visits its keys' values or its items."""
        if isinstance(found, MutableMapping):
            self.pieces.append(MappingPiece(name, found, self._label))
        elif isinstance(found, (list, deque)):
            self.pieces.append(SequencePiece(name, found))
        elif isinstance(found, set):
            self.pieces.append(SetPiece(name, found))
        if not self._data and len(found) > _LOADER_CONTAINER_LIMIT:
            return
        items = found.items() if isinstance(found, MutableMapping) else enumerate(found)
        for key, value in list(items):
            self._visit(self._label(name, key), value)

    def _visit_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Records a tensor, its gradient, its hooks and the attributes set on it; none of a loader's."""
        if not self._data:
            return
        self.pieces.append(TensorPiece(name, tensor))
        self.pieces.append(ClassPiece(name, tensor))
        if is_traceable_wrapper_subclass(tensor):
            for attribute in tensor.__tensor_flatten__()[0]:
                self._visit(f"{name}.{attribute}", getattr(tensor, attribute))
        for attribute in TensorPiece.HOOKS:
            self._visit(f"{name}.{attribute}", getattr(tensor, attribute, None))
        if tensor.is_leaf or tensor.retains_grad:
            self._visit(f"{name}.grad", tensor.grad)
        self.pieces.append(MappingPiece(name, vars(tensor), self._label))
        for key, value in list(vars(tensor).items()):
            self._visit(self._label(name, key), value)

    def _visit_dataset(self, name: str, dataset: object) -> None:
        """Records the random generators that a data set holds, also one inside another."""
        for key, value in list(getattr(dataset, "__dict__", {}).items()):
            if key == "dataset":
                self._visit_dataset(f"{name}.{key}", value)
            elif _as_value(name, value, data=False) is not None:
                self._visit(f"{name}.{key}", value)

    def _visit_iterator(self, name: str, iterator: Any) -> None:
        """Watches how far a loader's running iterator is: it cannot be rewound."""
        if iterator is not None:
            self._watch(name, lambda: getattr(iterator, "_num_yielded", None))

    def _watch(self, name: str, read: Callable[[], object]) -> None:
        self.pieces.append(ValuePiece(name, read, None))

    def _number_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        """Numbers the parameters as the optimizer's own `state_dict` does, to name its state entries."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._position.update({id(p): index for index, p in enumerate(parameters)})

    def _label(self, name: str, key: object) -> str:
        """Names an entry: by attribute, by index, or by a parameter's number in its optimizer."""
        if isinstance(key, str):
            return f"{name}.{key}"
        if isinstance(key, torch.Tensor):
            return f"{name}[{self._position.get(id(key), '?')}]"
        return f"{name}[{key!r}]" if isinstance(key, SIMPLE) else f"{name}[{type(key).__qualname__}]"


def _is_plain(found: object) -> bool:
    """Returns whether an object is the user's or a library's; internals of torch and Python are not state."""
    package = type(found).__module__.partition(".")[0]
    return package not in sys.stdlib_module_names and package != "torch"


def _as_value(name: str, found: Any, data: bool) -> ValuePiece | None:
    """Returns the piece for a random generator or an array, or None for any other object."""
    numpy = sys.modules.get("numpy")
    if isinstance(found, torch.Generator):
        return ValuePiece(name, found.get_state, found.set_state)
    if isinstance(found, Random):
        return ValuePiece(name, found.getstate, found.setstate)
    if numpy is None:
        return None
    if isinstance(found, numpy.random.Generator):
        bits = found.bit_generator
        return ValuePiece(name, lambda: copy.deepcopy(bits.state), lambda kept: setattr(bits, "state", kept))
    if isinstance(found, numpy.random.RandomState):
        return ValuePiece(name, lambda: found.get_state(legacy=False), found.set_state)
    if data and isinstance(found, numpy.ndarray):
        return ValuePiece(name, found.copy, lambda kept: numpy.copyto(found, kept))
    return None
