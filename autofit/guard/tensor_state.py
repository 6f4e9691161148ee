"""The bytes of tensors, arrays and random generators: copied, compared bit by bit, and written back in place.

Of tensors, whole storages are kept in host memory. Tied tensors, overlapping views and expanded buffers are then copied
once and still share their storage when they are restored. Bytes are written through a separate view, so that version
counters do not change.
"""

import copy
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autofit.guard.object_state import BYTES, VALUE, Piece, ValuePiece, fingerprint
from autofit.torch_internals import set_version
from autofit.workloads.streams import generator_state

_CHUNK_BYTES = 64 * 2**20


class Layout(NamedTuple):
    """How a tensor views its storage. The offset is in elements."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Returns the layout of a strided tensor, uninitialised (lazy) parameters included."""
        raw = tensor.data
        return cls(raw.dtype, raw.device, tuple(raw.shape), raw.stride(), int(raw.storage_offset()))

    @property
    def span(self) -> tuple[int, int]:
        """The byte range of the storage from the first to past the last element. Empty if there are no elements."""
        start = self.offset * self.dtype.itemsize
        if math.prod(self.shape) == 0:
            return start, start
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return start, start + (last + 1) * self.dtype.itemsize

    def is_kept(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Returns whether a tensor is over `storage` with this layout."""
        return tensor.data.untyped_storage()._cdata == storage._cdata and Layout.of(tensor) == self

    def into(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Returns a new tensor of this layout over `storage`."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


class StorageBytes(Piece):
    """The bytes of one storage that the named tensors share."""

    def __init__(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Copies the bytes that the tensors span to host memory. Without data, only the layout is saved."""
        super().__init__(tensors[0][0], lambda: self._host, lambda kept: None, order=BYTES)
        self._views = [(name, tensor, Layout.of(tensor)) for name, tensor in tensors]
        spans = [layout.span for _, _, layout in self._views]
        self._start, self._stop = min(low for low, _ in spans), max(high for _, high in spans)
        storage = tensors[0][1].data.untyped_storage()
        # The storage is held weakly: a reference would keep it on the device when a probe converts the model, and it
        # would count towards the measured memory. If other tensors still use it, the tensors are moved back to it.
        self._origin = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch has no types here
        self._device = storage.device
        self._host: torch.Tensor | None = None
        # Sharded training frees a storage between uses. The tensor then keeps its shape but has no bytes.
        if self._device.type != "meta" and self._start < self._stop <= storage.nbytes():
            self._host = _bytes_of(storage, self._start, self._stop).to("cpu", copy=True)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors, by name."""
        return {name: tensor for name, tensor, _ in self._views}

    def differences(self) -> Iterator[str]:
        """Yields the names of the tensors whose layout, sharing or bytes differ from the snapshot."""
        moved = self._moved()
        if moved or self._host is None:
            yield from moved
            return
        storage = self._storage()
        if same_bytes(_bytes_of(storage, self._start, self._stop), self._host):
            return
        for name, _, layout in self._views:
            low, high = layout.span
            host = self._host[low - self._start : high - self._start]
            if not same_bytes(_bytes_of(storage, low, high), host):
                yield name

    def restore(self) -> None:
        """Restores the bytes, and the layout and sharing of tensors whose data was replaced."""
        moved = bool(self._moved())
        self.untouched = False
        if moved:
            storage = self._storage()
            if storage._cdata != self._origin.cdata or storage.nbytes() < self._stop:
                storage = torch.empty(self._stop, dtype=torch.uint8, device=self._device).untyped_storage()
            for _, tensor, layout in self._views:
                if not layout.is_kept(tensor, storage):
                    tensor.data = layout.into(storage)
        if self._host is None:
            return
        current = _bytes_of(self._storage(), self._start, self._stop)
        # On the host, unchanged pages are not written, so that a memory-mapped checkpoint is not copied.
        if self._device.type != "cpu" or not same_bytes(current, self._host):
            current.copy_(self._host)
        else:
            self.untouched = not moved

    def _storage(self) -> torch.UntypedStorage:
        """Returns the original storage while it is alive, else that of the first tensor."""
        first = self._views[0][1].data.untyped_storage()
        if first._cdata == self._origin.cdata:
            return first
        alive: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._origin.cdata)
        return first if alive is None else alive

    def _moved(self) -> list[str]:
        """Returns the names of the tensors with another layout, or no longer in the shared storage."""
        storage = self._storage()
        freed = self._host is not None and storage.nbytes() < self._stop
        return [name for name, tensor, layout in self._views if freed or not layout.is_kept(tensor, storage)]


def _opaque(name: str, tensor: torch.Tensor) -> Piece:
    """Returns the piece for a tensor without strides (sparse, mkldnn), saved and restored as a whole."""
    write = torch.no_grad()(tensor.copy_)
    piece = ValuePiece(name, lambda: tensor.detach().clone().cpu(), write, BYTES)
    piece.save()
    return piece


def keep(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[Piece]:
    """Saves the bytes of the tensors, with one entry for each storage or tensor without strides."""
    shared: dict[int, list[tuple[str, torch.Tensor]]] = {}
    opaque: list[Piece] = []
    for name, tensor in tensors:
        if tensor.layout is torch.strided:
            shared.setdefault(tensor.data.untyped_storage()._cdata, []).append((name, tensor))
        else:
            opaque.append(_opaque(name, tensor))
    return [*map(StorageBytes, shared.values()), *opaque]


def _bytes_of(storage: torch.UntypedStorage, start: int, stop: int) -> torch.Tensor:
    """Returns bytes `start` to `stop` of a storage as a uint8 tensor over the same memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (stop - start,), (1,))


def same_bytes(current: torch.Tensor, host: torch.Tensor) -> bool:
    """Returns whether two uint8 tensors are equal. A tensor on a device is copied to the host in chunks."""
    if current.device.type != "cpu":
        parts = [slice(low, low + _CHUNK_BYTES) for low in range(0, current.numel(), _CHUNK_BYTES)]
        return all(same_bytes(current[part].cpu(), host[part]) for part in parts)
    if current.storage_offset() % 8 or host.storage_offset() % 8:
        return torch.equal(current, host)
    # Comparing as int64 is five times faster than as uint8.
    whole = current.numel() - current.numel() % 8
    return torch.equal(current[:whole].view(torch.int64), host[:whole].view(torch.int64)) and torch.equal(
        current[whole:], host[whole:]
    )


class ArrayPiece(Piece):
    """The elements of a numpy array, or the bytes of another writable buffer. Compared in place, copied when saved."""

    def __init__(self, name: str, found: Any) -> None:
        def write(kept: Any) -> None:
            if isinstance(found, (bytearray, array)):
                found[:] = kept
            else:
                np.asarray(found)[...] = np.asarray(kept)  # for example without their masks

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
    left, right = (torch.from_numpy(np.asarray(each).reshape(-1).view("uint8")) for each in (found, kept))
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
    if isinstance(found, (bytearray, array)):
        return ArrayPiece(name, found)
    state = generator_state(found)
    return None if state is None else ValuePiece(name, *state)


def array_parts(found: Any) -> list[Any]:
    """Returns what an array refers to: its objects, and the base array of a read-only view."""
    objects = [found.ravel().tolist()] if found.dtype.hasobject else []
    is_view = isinstance(found.base, np.ndarray) and not found.flags.writeable and not is_mapped(found)
    return [*objects, found.base] if is_view else objects


def is_mapped(array: Any) -> bool:
    """Returns whether a numpy array is memory-mapped."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False
