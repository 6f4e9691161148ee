"""Fingerprints of values by their bits: two values have the same one exactly when no bit of them differs.

`==` and `torch.equal` are not bit tests: they hold 0.0 and -0.0 equal, and nan unequal to itself.
"""

import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autofit.workloads.tree import pieces

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

# Immutable values whose repr says everything about them.
SIMPLE = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class Sink(Protocol):
    """What takes the bytes, such as a `hashlib` object."""

    def update(self, data: "Buffer", /) -> None:
        """Takes the next bytes."""


def in_full(value: object) -> str:
    """Returns a text of a simple value that says everything about it; Python writes no large number in decimals."""
    return hex(value) if isinstance(value, int) and abs(value) >= 2**63 else repr(value)


def fingerprint(value: object) -> str:
    """Returns the sha256, as hexadecimal, of a nested value."""
    sink = hashlib.sha256()
    feed(sink, value)
    return sink.hexdigest()


def feed(sink: Sink, value: object) -> None:
    """Feeds a nested value to `sink`: simple values, tensors, arrays and containers of them.

    An object of another type counts by its type alone: its address says nothing about its state.
    """
    numpy = sys.modules.get("numpy")
    if issubclass(type(value), SIMPLE):  # not `isinstance`, which asks the object for its class
        _feed_text(sink, f"{type(value).__qualname__}:{in_full(value)}")
    elif isinstance(value, torch.Tensor):
        _feed_tensor(sink, value)
    elif numpy is not None and isinstance(value, numpy.ndarray):
        _feed_text(sink, f"array:{value.dtype}:{value.shape}")
        sink.update(value.tobytes())
    elif isinstance(value, (set, frozenset)):
        _feed_text(sink, f"set:{sorted(fingerprint(item) for item in value)}")
    elif isinstance(value, (Mapping, list, tuple, deque)):
        _feed_items(sink, value)
    else:
        _feed_text(sink, f"object:{type(value).__module__}.{type(value).__qualname__}")


def _feed_items(sink: Sink, value: Mapping[Any, Any] | Sequence[Any]) -> None:
    """Feeds the keys and values of a mapping, or the items of a sequence, in order."""
    if isinstance(value, Mapping):
        kind = "mapping"
        items: Iterator[Any] = chain.from_iterable(value.items())
    else:
        kind, items = type(value).__qualname__, iter(value)
    _feed_text(sink, f"{kind}:{len(value)}")
    for item in items:
        feed(sink, item)


def _feed_text(sink: Sink, text: str) -> None:
    """Feeds one text with its length, so that two texts cannot run into each other."""
    data = text.encode(errors="surrogatepass")
    sink.update(len(data).to_bytes(8, "little") + data)


def _feed_tensor(sink: Sink, tensor: torch.Tensor) -> None:
    """Feeds a tensor's type, layout and bytes; one without data (meta, freed by sharding) has no bytes."""
    _feed_text(sink, f"{type(tensor).__qualname__}:{tensor.dtype}:{tensor.device}:{tensor.layout}")
    if is_traceable_wrapper_subclass(tensor):
        for attribute in tensor.__tensor_flatten__()[0]:
            feed(sink, getattr(tensor, attribute))
    elif len(parts := pieces(tensor.detach())) > 1:
        coalesced = tensor.layout is torch.sparse_coo and tensor.is_coalesced()
        _feed_text(sink, f"{tuple(tensor.shape)}:{coalesced}")
        for part in parts:
            _feed_tensor(sink, part)
    elif tensor.layout is torch.strided:
        raw = tensor.data
        _feed_text(sink, f"{tuple(raw.shape)}:{raw.stride()}")
        if raw.device.type != "meta" and raw.untyped_storage().nbytes() > 0:
            plain = raw.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            sink.update(plain.view(torch.uint8).numpy().data)
    else:
        _feed_tensor(sink, tensor.detach().to_dense())
