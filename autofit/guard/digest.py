"""Fingerprints of values by their bits: two values have the same fingerprint exactly if all their bits are equal.

`==` and `torch.equal` do not compare bits: 0.0 equals -0.0, and nan is not equal to itself.
"""

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from autofit.torch_internals import is_traceable_wrapper_subclass
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
    numpy = sys.modules.get("numpy")
    if issubclass(type(value), SIMPLE):  # `isinstance` would read `__class__` of the object
        _feed_text(update, f"{type(value).__qualname__}:{in_full(value)}")
    elif isinstance(value, torch.Tensor):
        _feed_tensor(update, value)
    elif numpy is not None and isinstance(value, numpy.ndarray):
        _feed_text(update, f"array:{value.dtype}:{value.shape}")
        update(value.tobytes())
    elif isinstance(value, (set, frozenset)):
        _feed_text(update, f"set:{sorted(fingerprint(item) for item in value)}")
    elif isinstance(value, (Mapping, list, tuple, deque)):
        _feed_items(update, value)
    else:
        _feed_text(update, f"object:{type(value).__module__}.{type(value).__qualname__}")


def _feed_items(update: Update, value: Mapping[Any, Any] | Sequence[Any]) -> None:
    """Feeds the keys and values of a mapping, or the items of a sequence, in order."""
    if isinstance(value, Mapping):
        kind = "mapping"
        items: Iterator[Any] = chain.from_iterable(value.items())
    elif set(map(type, value)) == {int}:  # such as a random generator's state, whose 625 integers one text describes
        _feed_text(update, f"{type(value).__qualname__} of int:{' '.join(map(in_full, value))}")
        return
    else:
        kind, items = type(value).__qualname__, iter(value)
    _feed_text(update, f"{kind}:{len(value)}")
    for item in items:
        feed(update, item)


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
