"""State that is only watched: objects that cannot be followed, and parts of a data set that are too large to copy."""

import io
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from operator import length_hint
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

import torch

from autofit.core.units import format_bytes, format_names
from autofit.guard import walk_rules
from autofit.guard.object_state import Piece, ValuePiece, slots
from autofit.guard.tensor_state import is_mapped

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
_SAMPLES, _SAMPLE_BYTES = 64, 64 * 2**10
"""Number and size of the samples of a large tensor or array that are read to detect a change: at most 4 MiB."""
_CELLS = 100_000
"""Maximum number of table cells read, in evenly spaced rows: about 0.1 s."""
_SHOWN = {"numpy.random": ("SeedSequence",), "pandas": ("DataFrame", "Series"), "PIL.Image": ("Image",)}
"""Classes of libraries whose objects have readable state."""
_PASS_EXTRAS = "If that matters, pass extras=[...] with an object whose state_dict() and load_state_dict() cover it."


class Unguarded:
    """State that the walk cannot restore, or does not because of its size.

    Attributes:
        pieces: pieces that watch this state.
    """

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
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
        held = [piece.read() for piece in slots("", extra)]
        self._covered |= {id(value) for value in (extra, *getattr(extra, "__dict__", {}).values(), *held)}

    def cannot_follow(self, name: str, found: object, what: str, of_user: bool) -> None:
        """Records an object that can be neither followed nor copied. Those held by a library are ignored."""
        if of_user:
            self._opaque[id(found)] = (name, what)
            self._watch(name, lambda: _position(found))

    def watch(self, name: str, found: Any) -> None:
        """Watches the state of a library's object that can be read, if there is any."""
        library = _library_of(type(found))  # type: ignore[arg-type]  # a class can be hashed
        if isinstance(found, walk_rules.MEMO):
            function = getattr(found, "__wrapped__", None)
            if isinstance(function, FunctionType) and walk_rules.origin_of(function) is walk_rules.Origin.USER:
                self._watch(name, lambda: found.cache_info().currsize)
        elif library == "numpy.random":
            self._watch(name, lambda: found.n_children_spawned)
        elif library == "pandas":
            self._watch(name, lambda: [found.shape, found.iloc[:: found.size // _CELLS + 1].to_csv()])
        elif library == "PIL.Image" and getattr(found, "im", None) is not None:  # reading an image would load it
            self._watch(name, lambda: zlib.crc32(found.tobytes()))

    def saved(self, pieces: Iterable[Piece]) -> list[Piece]:
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
                self._watch(name, lambda: _versions(tensors))
            self._large[name] = f"{len(found):,} entries"
        return False

    def may_copy(self, name: str, tensors: Sequence[torch.Tensor], data: bool) -> bool:
        """Returns whether a tensor, or the many tensors of a data set, are copied. Too large ones are watched."""
        if not data or any(tensor.layout is not torch.strided for tensor in tensors):
            return True
        if self._take(name, sum(tensor.nbytes for tensor in tensors)):
            return True
        self._watch(name, lambda: _versions(tensors))
        return False

    def may_copy_array(self, name: str, array: Any, data: bool) -> bool:
        """Returns whether an array is copied. A read-only array need not be, and a memory-mapped one cannot."""
        if not array.flags.writeable:
            return False
        if is_mapped(array):
            self._large[name] = f"a memory-mapped file of {format_bytes(array.nbytes)}, open for writing"
        elif not data or self._take(name, array.nbytes):
            return True
        self._watch(name, lambda: [array.shape, array.dtype.str, *_sampled(array)])
        return False

    def _watch(self, name: str, read: Callable[[], object]) -> None:
        self.pieces.append(ValuePiece(name, read, None))

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


@lru_cache(maxsize=4096)
def _library_of(kind: type) -> str:
    """Returns the library of a class whose objects have readable state; "" for any other class."""
    for library, names in _SHOWN.items():
        module = sys.modules.get(library)
        if module is not None and issubclass(kind, tuple(getattr(module, name, ()) for name in names)):
            return library
    return ""


def _versions(tensors: Sequence[torch.Tensor]) -> object:
    """Returns the version counters of tensors. A single tensor is also sampled."""
    versions = [None if tensor.is_inference() else tensor._version for tensor in tensors]
    first = tensors[0]
    if len(tensors) > 1 or first.device.type != "cpu" or not first.is_contiguous():
        return versions
    return [versions, _sampled(first.detach().view(torch.uint8).numpy())]


def _position(found: Any) -> object:
    """Returns the position of a file, generator or iterator, or whether a lock is held. None if it cannot be read."""
    try:
        if isinstance(found, io.IOBase):
            return None if found.closed or not found.seekable() else found.tell()
        if isinstance(found, (AsyncGeneratorType, CoroutineType, GeneratorType)):
            prefix = next(each for each in ("gi", "cr", "ag") if hasattr(found, f"{each}_frame"))
            frame = getattr(found, f"{prefix}_frame")
            return frame and [frame.f_lasti, {k: v for k, v in frame.f_locals.items() if isinstance(v, int)}]
        if callable(getattr(found, "locked", None)):
            return bool(found.locked())
        if type(found).__module__ == "itertools":
            return repr(found)
        if hasattr(found, "_num_yielded"):  # an iterator over a loader
            return found._num_yielded
        return length_hint(found, -1)
    except Exception:  # noqa: BLE001  # a user's object may raise any exception when it is inspected
        return None


def _sampled(found: Any) -> list[bytes]:
    """Returns a sample of the bytes of an array, evenly spaced."""
    flat = found.reshape(-1) if found.flags.c_contiguous else found.ravel()[: _SAMPLE_BYTES // found.itemsize]
    width = max(1, _SAMPLE_BYTES // max(1, flat.itemsize))
    step = max(width, flat.size // _SAMPLES)
    return [flat[start : start + width].tobytes() for start in range(0, flat.size, step)][: _SAMPLES + 1]
