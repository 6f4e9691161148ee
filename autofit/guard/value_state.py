"""State that is read and written as one value (random generators, arrays, bytes), or that can only be watched."""

import copy
import io
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from random import Random, SystemRandom
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

import torch

from autofit.guard.digest import fingerprint
from autofit.guard.object_state import ValuePiece
from autofit.guard.tensor_state import same_bytes
from autofit.torch_internals import set_version

_SAMPLES, _SAMPLE_BYTES = 64, 64 * 2**10
"""Number and size of the samples of a large tensor or array that are read to detect a change: at most 4 MiB."""
_SEQUENCES = (AsyncGeneratorType, CoroutineType, GeneratorType)


class ArrayPiece:
    """The elements of a numpy array, or the bytes of another writable buffer."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self._found = name, found
        self._kept: Any = None

    def save(self) -> None:
        """Copies the elements."""
        self._kept = copy.copy(self._found)

    def restore(self) -> None:
        """Writes the elements back into the same array if one differs."""
        if self._is_same():
            return
        if isinstance(self._found, (bytearray, array)):
            self._found[:] = self._kept
        else:
            _plain(self._found)[...] = _plain(self._kept)

    def differences(self) -> Iterator[str]:
        """Yields the name if an element differs in any bit."""
        if not self._is_same():
            yield self.name

    def content(self) -> object:
        """Returns the elements."""
        return bytes(self._found) if isinstance(self._found, (bytearray, array)) else self._found

    def _is_same(self) -> bool:
        found, kept = self._found, self._kept
        if isinstance(found, (bytearray, array)):
            return bytes(found) == bytes(kept)  # compare bits: with `==`, nan is not equal to itself
        plain = found.flags.c_contiguous and not found.dtype.hasobject and found.size and found.shape == kept.shape
        if not plain:
            return fingerprint(found) == fingerprint(kept)
        left, right = (torch.from_numpy(_bytes_of(x)) for x in (found, kept))
        return same_bytes(left, right)


class SamplesPiece:
    """The values of many tensors of a data set, saved and compared together: 2 us per tensor."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self.name, self._tensors = name, tensors
        self._kept: list[tuple[list[torch.Tensor], list[int], torch.Tensor]] = []

    def save(self) -> None:
        """Copies the values, those of one dtype into one tensor."""
        types: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in self._tensors:
            types.setdefault(tensor.dtype, []).append(tensor)
        self._kept = [(group, [each._version for each in group], _joined(group)) for group in types.values()]

    def restore(self) -> None:
        """Writes back values that differ in a bit, and the version counters."""
        for group, versions, values in self._kept:
            if not _same_values(_joined(group), values):
                for tensor, kept in zip(group, torch.split(values, [each.numel() for each in group]), strict=True):
                    if not _same_values(tensor.reshape(-1), kept):
                        tensor.data.copy_(kept.view(tensor.shape))
            written = [(t, version) for t, version in zip(group, versions, strict=True) if t._version != version]
            for tensor, version in written:
                set_version(tensor, version)

    def differences(self) -> Iterator[str]:
        """Yields the name if a tensor was written to, through torch or numpy."""
        if any(
            [each._version for each in group] != versions or not _same_values(_joined(group), values)
            for group, versions, values in self._kept
        ):
            yield self.name

    def content(self) -> object:
        """Returns the tensors."""
        return list(self._tensors)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns whether two flat tensors of one dtype hold the same bits."""
    left, right = (each if each.is_contiguous() else each.contiguous() for each in (left, right))
    return left.numel() == right.numel() and same_bytes(_raw(left), _raw(right))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of the bytes of a flat contiguous tensor."""
    return tensor.resolve_conj().resolve_neg().view(torch.uint8)


class WatchPiece(ValuePiece):
    """State that can be read but not restored. It is named before the search, and a change is named after it."""

    def __init__(self, name: str, read: Callable[[], object]) -> None:
        super().__init__(name, read, None)


def value_piece(name: str, found: Any) -> ValuePiece | ArrayPiece | None:
    """Returns the piece for a random generator or an array, or None for any other object."""
    if isinstance(found, torch.Generator):
        return ValuePiece(name, found.get_state, found.set_state)
    if isinstance(found, Random) and not isinstance(found, SystemRandom):
        return ValuePiece(name, found.getstate, found.setstate)
    if isinstance(found, (bytearray, array)):
        return ArrayPiece(name, found)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(found, numpy.random.Generator):
        found = found.bit_generator
    if isinstance(found, numpy.random.BitGenerator):
        return ValuePiece(name, lambda: copy.deepcopy(found.state), lambda kept: setattr(found, "state", kept))
    if isinstance(found, numpy.random.RandomState):
        return ValuePiece(name, lambda: found.get_state(legacy=False), found.set_state)
    return ArrayPiece(name, found) if isinstance(found, numpy.ndarray) else None


def is_array(found: object) -> bool:
    """Returns whether an object is a numpy array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(found, numpy.ndarray)


def array_parts(found: Any) -> list[Any]:
    """Returns what an array refers to: its objects, and the base array of a read-only view."""
    objects = [found.ravel().tolist()] if found.dtype.hasobject else []
    base = found.base if not found.flags.writeable and is_array(found.base) and not is_mapped(found) else None
    return objects if base is None else [*objects, base]


def _plain(found: Any) -> Any:
    """Returns a view of an array as `numpy.ndarray`, for example without a mask."""
    return sys.modules["numpy"].asarray(found)


def is_mapped(array: Any) -> bool:
    """Returns whether a numpy array is memory-mapped."""
    numpy = sys.modules["numpy"]
    while isinstance(array, numpy.ndarray):
        if isinstance(array, numpy.memmap):
            return True
        array = array.base
    return False


def watched_array(name: str, found: Any) -> WatchPiece:
    """Returns the piece that watches a large array by a sample of its bytes."""
    return WatchPiece(name, lambda: [found.shape, found.dtype.str, *_sampled(found)])


def watched_tensors(name: str, tensors: Sequence[torch.Tensor]) -> WatchPiece:
    """Returns the piece that watches tensors by their version counters. A single tensor is also sampled."""

    def read() -> object:
        versions = [None if t.is_inference() else t._version for t in tensors]
        (only,) = tensors if len(tensors) == 1 else (None,)
        host = only is not None and only.device.type == "cpu" and only.is_contiguous()
        return [versions, _sampled(only.detach().view(torch.uint8).numpy()) if host and only is not None else None]

    return WatchPiece(name, read)


def watched_object(name: str, found: Any) -> WatchPiece:
    """Returns the piece that watches the readable state of an object that cannot be followed."""
    return WatchPiece(name, lambda: _position(found))


def _position(found: Any) -> object:
    """Returns the position of a file or iterator, or whether a lock is held. None if it cannot be read."""
    try:
        if isinstance(found, io.IOBase):
            return None if found.closed or not found.seekable() else found.tell()
        if isinstance(found, _SEQUENCES):
            return _progress(found)
        if callable(getattr(found, "locked", None)):
            return bool(found.locked())
        if type(found).__module__ == "itertools":
            return repr(found)
        if hasattr(found, "_num_yielded"):  # an iterator over a loader
            return found._num_yielded
        return length_hint(found, -1)
    except Exception:  # noqa: BLE001  # a user's object may raise any exception when it is inspected
        return None


def _progress(found: Any) -> object:
    """Returns the position of a generator or coroutine, and its integer variables."""
    kind = next(prefix for prefix in ("gi", "cr", "ag") if hasattr(found, f"{prefix}_frame"))
    frame = getattr(found, f"{kind}_frame")
    return None if frame is None else [frame.f_lasti, {k: v for k, v in frame.f_locals.items() if isinstance(v, int)}]


def _sampled(found: Any) -> list[bytes]:
    """Returns a sample of the bytes of an array, evenly spaced."""
    flat = found.reshape(-1) if found.flags.c_contiguous else found.ravel()[: _SAMPLE_BYTES // found.itemsize]
    width = max(1, _SAMPLE_BYTES // max(1, flat.itemsize))
    step = max(width, flat.size // _SAMPLES)
    return [flat[start : start + width].tobytes() for start in range(0, flat.size, step)][: _SAMPLES + 1]


def _bytes_of(found: Any) -> Any:
    """Returns a view of the bytes of a contiguous array."""
    return _plain(found).reshape(-1).view("uint8")
