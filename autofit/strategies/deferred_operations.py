"""The operations that keep logits deferred, by the function that the user's code calls.

Each takes the deferred logits and the other arguments of the function. It returns the result, or None if these
arguments need the logits themselves.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from autofit.strategies.chunked_cross_entropy import Product, Reduction


class Deferred(Protocol):
    """What an operation needs of deferred logits; see `DeferredLogits`."""

    product: Product
    transposed: bool
    normalized: bool

    @property
    def shape(self) -> torch.Size: ...  # noqa: D102
    @property
    def dtype(self) -> torch.dtype: ...  # noqa: D102
    @property
    def device(self) -> torch.device: ...  # noqa: D102
    def derived(  # noqa: D102
        self, replay: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor | None = None, **changed: Any
    ) -> Any: ...
    def fused(self, target: torch.Tensor, weight: torch.Tensor | None, reduction: Reduction) -> torch.Tensor: ...  # noqa: D102


def reshape(logits: Deferred, *shape: Any) -> Any:
    """Reshapes the leading dimensions; the classes stay last."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    if logits.transposed or not shape or not all(isinstance(size, int) for size in shape):
        return None
    *leading, last = shape
    if last != logits.shape[-1] and (last != -1 or math.prod(leading) != math.prod(logits.shape[:-1])):
        return None
    hidden = logits.product.hidden
    return logits.derived(lambda value: value.reshape(shape), hidden.reshape(*leading, hidden.shape[-1]))


def flatten(logits: Deferred, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Flattens leading dimensions."""
    last = len(logits.shape) - 1
    if logits.transposed or end_dim % (last + 1) == last:
        return None
    hidden = logits.product.hidden.flatten(start_dim % (last + 1), end_dim % (last + 1))
    return logits.derived(lambda value: value.flatten(start_dim, end_dim), hidden)


def select(logits: Deferred, index: Any) -> Any:
    """Indexes the leading dimensions, as in a shift by one token or the choice of masked tokens."""
    items = index if isinstance(index, tuple) else (index,)
    if logits.transposed or not all(isinstance(item, (int, slice, torch.Tensor)) or item is ... for item in items):
        return None
    if not _keeps_classes(items, len(logits.shape)):
        return None
    hidden = logits.product.hidden[index]
    return logits.derived(lambda value: value[index], hidden) if hidden.dim() > 1 else None


def _keeps_classes(items: tuple[Any, ...], dims: int) -> bool:
    """Returns whether an index leaves the last of `dims` dimensions whole."""
    taken = sum(map(_indexed, items))
    if taken < dims and all(item is not ... for item in items[:-1]):
        return bool(items)
    return isinstance(items[-1], slice) and items[-1] == slice(None)


def _indexed(item: Any) -> int:
    """Returns the number of dimensions that an index takes."""
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return int(item is not ...)


def cast(logits: Deferred, *args: Any, **kwargs: Any) -> Any:
    """Casts to float32 or to the type that the logits have already; stays on the device."""
    targets = [*args, *kwargs.values()]
    if len(targets) != 1 or not set(kwargs) <= {"dtype", "device"}:
        return None
    (target,) = targets
    if target in (torch.float32, logits.dtype):
        return logits.derived(lambda value: value.to(target), dtype=target)
    return logits.derived(lambda value: value.to(target)) if target == logits.device else None


def widen(logits: Deferred) -> Any:
    """Casts to float32."""
    return cast(logits, torch.float32) if logits.dtype != torch.float64 else None


def contiguous(logits: Deferred) -> Any:
    """Makes contiguous."""
    return logits.derived(lambda value: value.contiguous())


def transpose(logits: Deferred, *dims: Any) -> Any:
    """Moves the classes from dimension 2 to dimension 1, where `cross_entropy` expects them."""
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    if logits.transposed or len(logits.shape) != 3 or not all(isinstance(dim, int) for dim in dims):
        return None
    wanted = [dim % 3 for dim in dims]
    if sorted(wanted) == [1, 2]:
        return logits.derived(lambda value: value.transpose(1, 2), transposed=True)
    return logits.derived(lambda value: value.permute(0, 2, 1), transposed=True) if wanted == [0, 2, 1] else None


def log_softmax(logits: Deferred, dim: int | None = None, dtype: Any = None, _stacklevel: int = 3) -> Any:
    """Takes the logarithm of the softmax over the classes."""
    last = len(logits.shape) - 1
    if dim is None or dim % (last + 1) != (1 if logits.transposed else last) or logits.normalized:
        return None
    if dtype not in (None, torch.float32, logits.dtype):
        return None
    result = torch.empty(1, dtype=logits.dtype, device=logits.device).log_softmax(0, dtype=dtype).dtype
    return logits.derived(lambda value: value.log_softmax(dim, dtype=dtype), dtype=result, normalized=True)


def cross_entropy(logits: Deferred, target: Any, **arguments: Any) -> Any:
    """Computes the loss over chunks."""
    return None if logits.normalized else _loss(logits, target, **arguments)


def nll_loss(logits: Deferred, target: Any, **arguments: Any) -> Any:
    """Computes the loss over chunks from the logarithm of the softmax."""
    return _loss(logits, target, **arguments) if logits.normalized else None


def _loss(
    logits: Deferred,
    target: Any,
    *,
    weight: torch.Tensor | None,
    size_average: Any,
    ignore_index: int,
    reduce: Any,
    reduction: str,
    label_smoothing: float = 0.0,
) -> Any:
    """Returns the loss for targets that are class indices. torch passes all other arguments as keywords."""
    shape = logits.shape
    expected = torch.Size([shape[0], *shape[2:]]) if logits.transposed or len(shape) == 2 else None
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64 or target.shape != expected:
        return None
    unusual = size_average is not None or reduce is not None or (weight is not None and label_smoothing > 0)
    if unusual or reduction not in ("mean", "sum", "none"):
        return None
    return logits.fused(target, weight, Reduction(ignore_index, label_smoothing, reduction))


DEFERRED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.view: reshape,
    torch.Tensor.reshape: reshape,
    torch.reshape: reshape,
    torch.Tensor.flatten: flatten,
    torch.flatten: flatten,
    torch.Tensor.__getitem__: select,
    torch.Tensor.to: cast,
    torch.Tensor.float: widen,
    torch.Tensor.contiguous: contiguous,
    torch.Tensor.transpose: transpose,
    torch.transpose: transpose,
    torch.Tensor.permute: transpose,
    torch.permute: transpose,
    F.log_softmax: log_softmax,
    torch.log_softmax: log_softmax,
    torch.Tensor.log_softmax: log_softmax,
    F.cross_entropy: cross_entropy,
    F.nll_loss: nll_loss,
}
"""The operation by the function that the user's code calls."""

METADATA: frozenset[Any] = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout")),
        *(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_cuda")),
        *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "nelement", "element_size", "ndimension")),
        *(getattr(torch.Tensor, name) for name in ("is_floating_point", "is_complex", "__len__", "__hash__")),
        torch.numel,
        torch.is_floating_point,
        torch.is_complex,
        torch.is_tensor,
    ]
)
"""Functions that need only the shape, type and device of logits."""
