"""State that is only watched: objects that cannot be followed, and parts of a data set that are too large to copy.

Such state is named before the search. Detected changes are named after it.
"""

import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from types import FunctionType, MemberDescriptorType
from typing import Any, TypeVar

import torch

from autofit.core.units import format_bytes, format_names
from autofit.guard import walk_rules
from autofit.guard.object_state import Piece, slot_value
from autofit.guard.value_state import (
    WatchPiece,
    is_mapped,
    watched_array,
    watched_object,
    watched_tensors,
)
from autofit.guard.walk_rules import Origin, code_origin

AnyPiece = TypeVar("AnyPiece", bound=Piece)

DATA_BYTES = 256 * 2**20
"""Maximum size of the tensors and arrays of a data set that are copied."""
DATA_OBJECTS = 20_000
"""Maximum number of objects followed below data sets and in objects of libraries: about 0.3 s."""
FEW = 16
"""A container of plain values, or of tuples of them, is recorded but not entered from this number of entries on."""
LONG = 10_000
"""A container with more entries than this is recorded, but not entered."""
MANY = 256
"""Tensors of a data set in one container are handled together from this number on."""
_NAMED = 5
_PASS_EXTRAS = "If that matters, pass extras=[...] with an object whose state_dict() and load_state_dict() cover it."


class Unguarded:
    """State that the walk cannot restore, or does not because of its size.

    Attributes:
        pieces: pieces that watch this state.
    """

    def __init__(self) -> None:
        self.pieces: list[WatchPiece] = []
        self._opaque: dict[int, tuple[str, str]] = {}
        self._large: dict[str, str] = {}
        self._covered: set[int] = set()
        self._data_bytes = self._objects = 0

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats for the user before the search. Empty for most workloads."""
        found = []
        if opaque := [f"{name} ({what})" for key, (name, what) in self._opaque.items() if key not in self._covered]:
            found.append(f"cannot be restored if a step changes it: {format_names(opaque, _NAMED)}. {_PASS_EXTRAS}")
        if self._large:
            large = [f"{name} ({what})" for name, what in self._large.items()]
            found.append(
                f"watched but not copied, because it is large: {format_names(large, _NAMED)}. Changes that your code "
                "makes to it while tuning remain. Pass objects that must be restored as extras=[...]."
            )
        return tuple(found)

    def covered_by(self, extra: object) -> None:
        """Records that `state_dict` of `extra` covers the objects it holds."""
        members = (
            m for kind in type(extra).__mro__ for m in vars(kind).values() if isinstance(m, MemberDescriptorType)
        )
        held = [*getattr(extra, "__dict__", {}).values(), *(slot_value(extra, member) for member in members)]
        self._covered |= {id(value) for value in (extra, *held)}

    def cannot_follow(self, name: str, found: object, what: str, of_user: bool) -> None:
        """Records an object that can be neither followed nor copied. Those held by a library are ignored."""
        if of_user:
            self._opaque[id(found)] = (name, what)
            self.pieces.append(watched_object(name, found))

    def watch(self, name: str, found: object) -> None:
        """Watches the readable state of a library's object."""
        if (read := shown_state(found)) is not None:
            self.pieces.append(WatchPiece(name, read))

    def saved(self, pieces: Iterable[AnyPiece]) -> list[AnyPiece]:
        """Saves the pieces and returns them. Pieces that cannot be read are recorded and left out."""
        saved = []
        for piece in pieces:
            try:
                piece.save()
            except Exception as error:  # noqa: BLE001  # an object that raises when it is read must not stop the search
                self._opaque[id(piece)] = (piece.name, f"reading it raised {type(error).__name__}")
            else:
                saved.append(piece)
        return saved

    def may_follow(self, name: str, limited: bool) -> bool:
        """Returns whether the attributes of another object are followed. `limited` applies `DATA_OBJECTS`."""
        if not limited:
            return True
        self._objects += 1
        if self._objects == DATA_OBJECTS:
            self._large[name] = f"and others: at most {DATA_OBJECTS:,} objects are followed"
        return self._objects < DATA_OBJECTS

    def may_enter(self, name: str, found: Collection[Any], of_user: bool) -> bool:
        """Returns whether the entries of a container are followed. Plain values and very many entries are not."""
        if len(found) < FEW:
            return True
        if _are_plain(found):
            return False
        if len(found) <= LONG:
            return True
        if of_user:
            tensors = [value for value in found if isinstance(value, torch.Tensor)]
            if tensors:
                self.pieces.append(watched_tensors(name, tensors))
            self._large[name] = f"{len(found):,} entries"
        return False

    def may_copy_samples(self, name: str, samples: Sequence[torch.Tensor]) -> bool:
        """Returns whether the many tensors of a data set are copied."""
        if self._take(name, sum(tensor.nbytes for tensor in samples)):
            return True
        self.pieces.append(watched_tensors(name, samples))
        return False

    def may_copy_tensor(self, name: str, tensor: torch.Tensor, data: bool) -> bool:
        """Returns whether a tensor is copied. A large tensor of a data set is only watched."""
        if not data or tensor.layout is not torch.strided:
            return True
        size_bytes = tensor.numel() * tensor.element_size()
        if self._take(name, size_bytes):
            return True
        self.pieces.append(watched_tensors(name, [tensor]))
        return False

    def may_copy_array(self, name: str, array: Any, data: bool) -> bool:
        """Returns whether an array is copied. A read-only array need not be, and a memory-mapped one cannot."""
        if not array.flags.writeable:
            return False
        if is_mapped(array):
            self._large[name] = f"a memory-mapped file of {format_bytes(array.nbytes)}, open for writing"
        elif not data or self._take(name, array.nbytes):
            return True
        self.pieces.append(watched_array(name, array))
        return False

    def _take(self, name: str, size_bytes: int) -> bool:
        if self._data_bytes + size_bytes <= DATA_BYTES:
            self._data_bytes += size_bytes
            return True
        self._large[name] = f"{format_bytes(size_bytes)}; at most {format_bytes(DATA_BYTES)} of a data set is copied"
        return False


def many_samples(found: Collection[Any]) -> list[torch.Tensor]:
    """Returns the tensors of a container of many plain tensors, or of tuples of them. Else an empty list."""
    if len(found) < MANY:
        return []
    if set(map(type, found)).isdisjoint((torch.Tensor, tuple)):
        return []
    flat: list[Any] = []
    for item in found:
        flat.extend(item) if type(item) is tuple else flat.append(item)
    tensors = [value for value in flat if type(value) is torch.Tensor]
    others = {type(value) for value in flat} - {torch.Tensor}
    simple = all(issubclass(kind, walk_rules.IMMUTABLE) for kind in others)
    return tensors if simple and all(map(_is_plain, tensors)) else []


def _are_plain(values: Collection[Any]) -> bool:
    """Returns whether all are plain values, or all are tuples of plain values. Checks each class once."""
    types = set(map(type, values))
    if types == {tuple}:
        types = set(map(type, chain.from_iterable(values)))
    return all(issubclass(kind, walk_rules.IMMUTABLE) for kind in types)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor holds only values: no graph, hooks, transform or special layout."""
    if tensor.requires_grad or not tensor.is_leaf or tensor.is_inference() or tensor.is_nested:
        return False
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not vars(tensor)


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
