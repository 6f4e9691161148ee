"""States that are read and written as one value: random generators, arrays, bytes; and what can only be watched."""

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

from autofit.probing.guard.digest import fingerprint
from autofit.probing.guard.object_state import ValuePiece
from autofit.probing.guard.tensor_state import same_bytes

_SAMPLES, _SAMPLE_BYTES = 64, 64 * 2**10
"""How much of a large tensor or array is read to notice a change: at most 4 MiB, evenly spread."""
_SEQUENCES = (AsyncGeneratorType, CoroutineType, GeneratorType)


class ArrayPiece:
    """The elements of a numpy array, or the bytes of another writable buffer, by name."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self._found = name, found
        self._kept: Any = None

    def save(self) -> None:
        """Copies the elements."""
        self._kept = copy.copy(self._found)

    def restore(self) -> None:
        """Writes the elements back, where one differs, into the same array."""
        if self._is_same():
            return
        if isinstance(self._found, (bytearray, array)):
            self._found[:] = self._kept
        else:
            self._found[...] = self._kept

    def differences(self) -> Iterator[str]:
        """Yields the name when an element differs in any bit."""
        if not self._is_same():
            yield self.name

    def content(self) -> object:
        """Returns the elements."""
        return bytes(self._found) if isinstance(self._found, (bytearray, array)) else self._found

    def _is_same(self) -> bool:
        found, kept = self._found, self._kept
        if isinstance(found, (bytearray, array)):
            return bytes(found) == bytes(kept)  # by bits: `==` of an array holds nan unequal to itself
        plain = found.flags.c_contiguous and not found.dtype.hasobject and found.size and found.shape == kept.shape
        if not plain:
            return fingerprint(found) == fingerprint(kept)
        left, right = (torch.from_numpy(_bytes_of(x)) for x in (found, kept))
        return same_bytes(left, right)


class SamplesPiece:
    """The values of many tensors of a data set, compared by what counts torch's writes to them: 1 us for each."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self.name, self._tensors = name, tensors
        self._kept: list[tuple[int, torch.Tensor]] = []

    def save(self) -> None:
        """Copies the values."""
        self._kept = [(tensor._version, tensor.detach().clone()) for tensor in self._tensors]

    def restore(self) -> None:
        """Writes the values back into tensors that were written to, and their counts of writes."""
        for tensor, version, values in self._written():
            tensor.data.copy_(values)
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))

    def differences(self) -> Iterator[str]:
        """Yields the name when a tensor was written to."""
        if self._written():
            yield self.name

    def content(self) -> object:
        """Returns the tensors."""
        return list(self._tensors)

    def _written(self) -> list[tuple[torch.Tensor, int, torch.Tensor]]:
        pairs = zip(self._tensors, self._kept, strict=True)
        return [(tensor, version, values) for tensor, (version, values) in pairs if tensor._version != version]


class WatchPiece(ValuePiece):
    """What can be looked at but not put back. It was named before the search; a change is named after it."""

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


def is_mapped(array: Any) -> bool:
    """Returns whether a numpy array looks into a file."""
    numpy = sys.modules["numpy"]
    while isinstance(array, numpy.ndarray):
        if isinstance(array, numpy.memmap):
            return True
        array = array.base
    return False


def watched_array(name: str, found: Any) -> WatchPiece:
    """Returns the piece that watches a large array by some of its bytes."""
    return WatchPiece(name, lambda: [found.shape, found.dtype.str, *_sampled(found)])


def watched_tensors(name: str, tensors: Sequence[torch.Tensor]) -> WatchPiece:
    """Returns the piece that watches tensors by what counts torch's writes to them; one also by some of its bytes."""

    def read() -> object:
        versions = [None if t.is_inference() else t._version for t in tensors]
        (only,) = tensors if len(tensors) == 1 else (None,)
        host = only is not None and only.device.type == "cpu" and only.is_contiguous()
        return [versions, _sampled(only.detach().view(torch.uint8).numpy()) if host and only is not None else None]

    return WatchPiece(name, read)


def watched_object(name: str, found: Any) -> WatchPiece:
    """Returns the piece that watches an object that cannot be followed, as far as it shows its state."""
    return WatchPiece(name, lambda: _position(found))


def _position(found: Any) -> object:
    """Returns how far a file or an iterator is, and whether a lock is held; None for what does not say."""
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
    except Exception:  # noqa: BLE001  # a user's object may raise whatever it likes when it is looked at
        return None


def _progress(found: Any) -> object:
    """Returns where a generator or coroutine stands, and the simple values of its variables."""
    kind = next(prefix for prefix in ("gi", "cr", "ag") if hasattr(found, f"{prefix}_frame"))
    frame = getattr(found, f"{kind}_frame")
    return None if frame is None else [frame.f_lasti, {k: v for k, v in frame.f_locals.items() if isinstance(v, int)}]


def _sampled(found: Any) -> list[bytes]:
    """Returns some of the bytes of an array, evenly spread."""
    flat = found.reshape(-1) if found.flags.c_contiguous else found.ravel()[: _SAMPLE_BYTES // found.itemsize]
    width = max(1, _SAMPLE_BYTES // max(1, flat.itemsize))
    step = max(width, flat.size // _SAMPLES)
    return [flat[start : start + width].tobytes() for start in range(0, flat.size, step)][: _SAMPLES + 1]


def _bytes_of(found: Any) -> Any:
    """Returns the bytes of an array without gaps, as an array over the same memory."""
    return sys.modules["numpy"].asarray(found).reshape(-1).view("uint8")
