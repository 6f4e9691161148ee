"""State that is read and written as one value: random generators, arrays, bytes, and many tensors of a data set."""

import copy
import sys
from array import array
from collections.abc import Iterator, Sequence
from random import Random, SystemRandom
from typing import Any

import torch

from autofit.guard.digest import fingerprint
from autofit.guard.object_state import VALUE, Piece, ValuePiece
from autofit.guard.tensor_state import same_bytes
from autofit.torch_internals import set_version


class ArrayPiece(Piece):
    """The elements of a numpy array, or the bytes of another writable buffer. Compared in place, copied when saved."""

    def __init__(self, name: str, found: Any) -> None:
        def write(kept: Any) -> None:
            if isinstance(found, (bytearray, array)):
                found[:] = kept
            else:
                _plain(found)[...] = _plain(kept)

        super().__init__(name, lambda: found, write, _same_elements, VALUE)

    def save(self) -> None:
        """Copies the elements."""
        self._kept = copy.copy(self.read())


def _same_elements(found: Any, kept: Any) -> bool:
    """Returns whether the bits of two arrays are equal. With `==`, nan is not equal to itself."""
    if isinstance(found, (bytearray, array)):
        return bytes(found) == bytes(kept)
    is_flat = found.flags.c_contiguous and not found.dtype.hasobject and found.size and found.shape == kept.shape
    if not is_flat:
        return fingerprint(found) == fingerprint(kept)
    left, right = (torch.from_numpy(_plain(each).reshape(-1).view("uint8")) for each in (found, kept))
    return same_bytes(left, right)


class SamplesPiece(Piece):
    """The values of many tensors of a data set, saved and compared together: 2 us per tensor."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(name, lambda: tensors, self._put_back, order=VALUE)

    def save(self) -> None:
        """Copies the values, those of one dtype into one tensor."""
        types: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in self.read():
            types.setdefault(tensor.dtype, []).append(tensor)
        self._kept = [(group, [each._version for each in group], _joined(group)) for group in types.values()]

    def differences(self) -> Iterator[str]:
        """Yields the name if a tensor was written to, through torch or numpy."""
        if any(
            [each._version for each in group] != versions or not _same_values(_joined(group), values)
            for group, versions, values in self._kept
        ):
            yield self.name

    def _put_back(self, saved: list[tuple[list[torch.Tensor], list[int], torch.Tensor]]) -> None:
        """Writes back values that differ in a bit, and the version counters."""
        for group, versions, values in saved:
            if not _same_values(_joined(group), values):
                for tensor, kept in zip(group, torch.split(values, [each.numel() for each in group]), strict=True):
                    if not _same_values(tensor.reshape(-1), kept):
                        tensor.data.copy_(kept.view(tensor.shape))
            for tensor, version in zip(group, versions, strict=True):
                if tensor._version != version:
                    set_version(tensor, version)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns whether two flat tensors of one dtype hold the same bits."""
    raw = [each.contiguous().resolve_conj().resolve_neg().view(torch.uint8) for each in (left, right)]
    return left.numel() == right.numel() and same_bytes(*raw)


def value_piece(name: str, found: Any) -> Piece | None:
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
    return None


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
