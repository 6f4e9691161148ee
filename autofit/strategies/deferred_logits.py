"""DeferredLogits: the output of a linear layer that is computed only if something else than a cross-entropy uses it.

The layer returns a tensor without memory. Reshaping, slicing and shifting its leading dimensions do the same to the
layer's input. `F.cross_entropy` then works on chunks of rows, so that the logits never exist as a whole. Any other
operation computes the logits, so that it sees what it would have seen, and saves nothing.

`torch.nn.functional.linear_cross_entropy` works on chunks too, with about the same peak and time. It does not exist in
torch 2.11, has no label smoothing, its graph can be used only once, and it is one operator in a trace, so that the
memory of its chunks would not be estimated.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from autofit.torch_internals import FakeTensor, is_transforming, pytree, without_tensor_subclasses

CHUNKS = 8
"""Number of chunks. The memory of the logits shrinks by this factor. Each chunk adds its share to the gradient of the
weight, which costs a pass over that gradient."""


@dataclass(frozen=True, slots=True)
class Product:
    """The operands of a linear layer's output.

    Attributes:
        hidden: the input, [..., features].
        weight: [classes, features].
        bias: [classes], or None.
        dtype: type in which the product is computed: the autocast type, if autocast was on.
        samples: length of the first dimension of the layer's input, by which chunks grow; 1 if that is of rows.
    """

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    dtype: torch.dtype
    samples: int = 1

    def value(self) -> torch.Tensor:
        """Returns the output as the layer itself computes it."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        with torch.autocast(self.hidden.device.type, enabled=False):
            return F.linear(self.hidden.to(self.dtype), self.weight.to(self.dtype), bias)

    def versions(self) -> tuple[int, ...]:
        """Returns how often each operand was changed in place."""
        return tuple(each._version for each in (self.hidden, self.weight, self.bias) if each is not None)


def chunked_cross_entropy(
    product: Product,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """Returns `F.cross_entropy` of the product, in float32 or wider.

    `hidden` is [rows, features], and `target` holds class indices, [rows]. The other arguments are those of
    `F.cross_entropy`. Class weights cannot be combined with label smoothing.
    """
    ignored = target == ignore_index
    target = target.masked_fill(ignored, 0)
    wide = torch.promote_types(product.dtype, torch.float32)
    share = torch.ones_like(target, dtype=wide) if weight is None else weight.to(wide)[target]
    share = share.masked_fill(ignored, 0)
    rows = product.samples * math.ceil(max(len(target), 1) / (product.samples * CHUNKS))
    losses: torch.Tensor = _Losses.apply(  # type: ignore[no-untyped-call]  # torch has no types here
        product.hidden, product.weight, product.bias, target, label_smoothing, product.dtype, rows
    )
    losses = torch.where(ignored, 0, losses * share)
    if reduction == "none":
        return losses
    return losses.sum() / share.sum() if reduction == "mean" else losses.sum()


class _Losses(torch.autograd.Function):
    """The cross-entropy of each row. The backward pass computes the logits of each chunk again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, target: Any, smoothing: float, dtype: torch.dtype, rows: int
    ) -> torch.Tensor:
        """Returns the losses, [rows], in float32 or wider."""
        losses, scales = [], []
        weights, addend = weight.to(dtype), None if bias is None else bias.to(dtype)
        for part in _chunks(len(hidden), rows):
            logits = _logits(hidden[part], weights, addend)
            largest = logits.amax(1)
            logits.sub_(largest.unsqueeze(1))
            chosen = logits.gather(1, target[part].unsqueeze(1)).squeeze(1)
            aim = torch.lerp(chosen, logits.mean(1), smoothing) if smoothing else chosen
            log_sum = logits.exp_().sum(1).log_()
            losses.append(log_sum - aim)
            scales.append(log_sum.add_(largest))
            del logits
        ctx.save_for_backward(hidden, weight, bias, target, torch.cat(scales) if scales else target)
        ctx.smoothing, ctx.dtype, ctx.rows = smoothing, dtype, rows
        wide = torch.promote_types(dtype, torch.float32)
        return torch.cat(losses) if losses else hidden.new_zeros(0, dtype=wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of hidden, weight and bias. They are summed over chunks in float32 or wider."""
        hidden, weight, bias, target, scales = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        weights, addend = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=upstream.dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=upstream.dtype) if wants_bias else None
        for part in _chunks(len(hidden), ctx.rows):
            inputs = hidden[part]
            slopes = _logits(inputs, weights, addend)
            slopes.sub_(scales[part].unsqueeze(1)).exp_()
            column = target[part].unsqueeze(1)
            slopes.scatter_(1, column, slopes.gather(1, column) - (1 - ctx.smoothing))
            if ctx.smoothing:
                slopes.sub_(ctx.smoothing / slopes.shape[1])
            slopes.mul_(upstream[part].unsqueeze(1))
            if grad_bias is not None:
                grad_bias += slopes.sum(0)
            slopes = slopes.to(ctx.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = slopes @ weights
            if grad_weight is not None and grad_weight.dtype == slopes.dtype:
                grad_weight.addmm_(slopes.T, inputs.to(ctx.dtype))
            elif grad_weight is not None:
                grad_weight.add_(slopes.T @ inputs.to(ctx.dtype))
            del slopes
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, count, rows))


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns new logits in float32 or wider, as `cross_entropy` uses them under autocast."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(weight.dtype), weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def reshape(logits: "DeferredLogits", *shape: Any) -> Any:
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


def flatten(logits: "DeferredLogits", start_dim: int = 0, end_dim: int = -1) -> Any:
    """Flattens leading dimensions."""
    last = len(logits.shape) - 1
    if logits.transposed or end_dim % (last + 1) == last:
        return None
    hidden = logits.product.hidden.flatten(start_dim % (last + 1), end_dim % (last + 1))
    return logits.derived(lambda value: value.flatten(start_dim, end_dim), hidden)


def select(logits: "DeferredLogits", index: Any) -> Any:
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
    masks = [item for item in items if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)]
    taken = sum(mask.dim() - 1 for mask in masks) + sum(item is not ... for item in items)
    if taken < dims and all(item is not ... for item in items[:-1]):
        return bool(items)
    return isinstance(items[-1], slice) and items[-1] == slice(None)


def cast(logits: "DeferredLogits", *args: Any, **kwargs: Any) -> Any:
    """Casts to float32 or to the type that the logits have already; stays on the device."""
    targets = [*args, *kwargs.values()]
    if len(targets) != 1 or not set(kwargs) <= {"dtype", "device"}:
        return None
    (target,) = targets
    if target in (torch.float32, logits.dtype):
        return logits.derived(lambda value: value.to(target), dtype=target)
    return logits.derived(lambda value: value.to(target)) if target == logits.device else None


def transpose(logits: "DeferredLogits", *dims: Any) -> Any:
    """Moves the classes from dimension 2 to dimension 1, where `cross_entropy` expects them."""
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    if logits.transposed or len(logits.shape) != 3 or not all(isinstance(dim, int) for dim in dims):
        return None
    wanted = [dim % 3 for dim in dims]
    if sorted(wanted) == [1, 2]:
        return logits.derived(lambda value: value.transpose(1, 2), transposed=True)
    return logits.derived(lambda value: value.permute(0, 2, 1), transposed=True) if wanted == [0, 2, 1] else None


def cross_entropy(
    logits: "DeferredLogits",
    target: Any,
    *,
    weight: torch.Tensor | None,
    size_average: Any,
    ignore_index: int,
    reduce: Any,
    reduction: str,
    label_smoothing: float = 0.0,
) -> Any:
    """Computes the loss over chunks if targets are class indices. torch passes all other arguments as keywords."""
    shape = logits.shape
    expected = torch.Size([shape[0], *shape[2:]]) if logits.transposed or len(shape) == 2 else None
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64 or target.shape != expected:
        return None
    unusual = size_average is not None or reduce is not None or (weight is not None and label_smoothing > 0)
    if unusual or reduction not in ("mean", "sum", "none"):
        return None
    logits.family.check_unchanged()
    product = logits.product
    logits.family.usage.fused_bytes += target.numel() * product.weight.shape[0] * torch.float32.itemsize
    samples = 1 if target.numel() % product.samples else product.samples
    flat = replace(product, hidden=product.hidden.flatten(0, -2), samples=samples)
    loss = chunked_cross_entropy(flat, target.flatten(), weight, ignore_index, label_smoothing, reduction)
    loss = loss.to(torch.float32 if torch.is_autocast_enabled(logits.device.type) else logits.dtype)
    return loss.view_as(target) if reduction == "none" else loss


DEFERRED: dict[Any, Callable[..., Any]] = {
    torch.Tensor.view: reshape,
    torch.Tensor.reshape: reshape,
    torch.reshape: reshape,
    torch.Tensor.flatten: flatten,
    torch.flatten: flatten,
    torch.Tensor.__getitem__: select,
    torch.Tensor.to: cast,
    torch.Tensor.float: lambda logits: cast(logits, torch.float32),
    torch.Tensor.contiguous: lambda logits: logits.derived(lambda value: value.contiguous()),
    torch.Tensor.transpose: transpose,
    torch.transpose: transpose,
    torch.Tensor.permute: transpose,
    torch.permute: transpose,
    F.cross_entropy: cross_entropy,
}
"""The operation by the function that the user's code calls."""

_PROPERTIES = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda")
_METHODS = (
    "size", "dim", "numel", "nelement", "element_size", "ndimension", "is_floating_point", "is_complex", "__len__",
    "__hash__",
)  # fmt: skip
METADATA = frozenset[Any](
    [
        *(getattr(torch.Tensor, name).__get__ for name in _PROPERTIES),
        *(getattr(torch.Tensor, name) for name in _METHODS),
        *(getattr(torch, name) for name in ("numel", "is_floating_point", "is_complex", "is_tensor")),
    ]
)
"""Functions that need only the shape, type and device of logits."""


Compute = Callable[[], torch.Tensor]

PLAIN = (torch.Tensor, nn.Parameter, FakeTensor)
"""Types of tensors that a deferred product may have as operands."""
AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)
"""Types that autocast casts."""


@dataclass(slots=True)
class Usage:
    """What became of the outputs of a layer.

    Attributes:
        fused_bytes: bytes of the logits, in float32, that a cross-entropy did not need.
        computed_for: operations for which the logits were computed, before or without a cross-entropy.
    """

    fused_bytes: int = 0
    computed_for: list[str] = field(default_factory=list)


class DeferringForward:
    """A forward of `nn.Linear` that defers its product while gradients are computed.

    It holds the layer and not its bound method, so that a copied or pickled model calls its own layer.
    """

    def __init__(self, layer: nn.Linear, usage: Usage | None = None) -> None:
        self.layer, self.usage = layer, usage

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # the name that nn.Linear has
        """Returns the layer's output, deferred if that is possible here."""
        layer = self.layer
        transformed = torch.compiler.is_compiling() or is_transforming()  # by a transform of torch.func (grad, vmap)
        dtype = None if transformed else _product_type(input, layer)
        if dtype is None:
            return nn.Linear.forward(layer, input)
        samples = input.shape[0] if input.dim() > 2 else 1  # [samples, tokens, features]
        product = Product(input, layer.weight, layer.bias, dtype, samples)
        return DeferredLogits.of(product, self.usage or Usage())


def _product_type(hidden: torch.Tensor, layer: nn.Linear) -> torch.dtype | None:
    """Returns the type in which the layer computes, or None if its output cannot be deferred."""
    operands = [hidden, layer.weight] if layer.bias is None else [hidden, layer.weight, layer.bias]
    if not torch.is_grad_enabled() or hidden.dim() < 2 or any(type(each) not in PLAIN for each in operands):
        return None
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        casts = all(each.dtype in AUTOCAST and each.device.type == device for each in operands)
        return torch.get_autocast_dtype(device) if casts else None
    same = len({(each.dtype, each.device) for each in operands}) == 1 and hidden.is_floating_point()
    return hidden.dtype if same else None


class DeferredLogits(torch.Tensor):
    """The output of a linear layer, or a view or cast of it, that is not computed yet.

    Once any of them is computed, all are, in the order in which they were made: each then stands for an ordinary
    tensor, so that operations in place act as on ordinary views and copies.

    Attributes:
        product: the operands; the leading dimensions of `hidden` are those of this tensor.
        transposed: whether the classes are dimension 1 of 3, not the last one.
        family: the output of the layer and all that was derived from it.
    """

    product: Product
    transposed: bool
    family: "_Family"
    _compute: Compute
    _value: torch.Tensor | None

    @staticmethod
    def __new__(cls, product: Product, dtype: torch.dtype, transposed: bool) -> Self:
        """Returns a tensor without memory, with the shape of the logits."""
        shape = [*product.hidden.shape[:-1], product.weight.shape[0]]
        shape = [shape[0], shape[2], shape[1]] if transposed else shape
        made: Self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=product.hidden.device)
        return made

    @classmethod
    def of(cls, product: Product, usage: Usage) -> "DeferredLogits":
        """Returns the output of a layer."""
        family = _Family(usage, product, product.versions())
        return cls._made(product, product.dtype, False, family, family.value)

    @classmethod
    def _made(
        cls, product: Product, dtype: torch.dtype, transposed: bool, family: "_Family", compute: Compute
    ) -> "DeferredLogits":
        made: DeferredLogits = _Edge.apply(product.hidden, product.weight, product.bias, product, dtype, transposed)  # type: ignore[no-untyped-call]  # torch has no types here
        made.product, made.transposed, made.family = product, transposed, family
        made._compute, made._value = compute, None
        family.members.append(weakref.ref(made))
        return made

    def derived(
        self,
        replay: Callable[[torch.Tensor], torch.Tensor],
        hidden: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
    ) -> "DeferredLogits":
        """Returns the deferred result of an operation, `replay`.

        `hidden` is the layer's input after it, and `dtype` its type, if these change. With `transposed`, it moves the
        classes to dimension 1.
        """
        product = self.product if hidden is None else replace(self.product, hidden=hidden)
        form = (dtype or self.dtype, transposed or self.transposed)
        return self._made(product, *form, self.family, lambda: replay(self.computed("")))

    @property
    def is_deferred(self) -> bool:
        """Whether this tensor has not been computed."""
        return self._value is None

    def computed(self, operation: str) -> torch.Tensor:
        """Returns the ordinary tensor that this one stands for.

        Raises:
            RuntimeError: the layer's weights or input have changed, so that it can no longer be computed.
        """
        if self._value is None:
            self.family.usage.computed_for.append(operation)
            self.family.compute()
        assert self._value is not None, "a family computes all its members"
        return self._value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Defers `func` if it is known and nothing was computed yet; else computes the logits and runs it."""
        kwargs = kwargs or {}
        if func in METADATA:
            with without_tensor_subclasses():
                return func(*args, **kwargs)
        logits, defer = args[0] if args else None, DEFERRED.get(func)
        if defer is not None and isinstance(logits, cls) and logits.is_deferred and torch.is_grad_enabled():
            result = defer(logits, *args[1:], **kwargs)
            if result is not None:
                return result
        name = getattr(func, "__name__", str(func))
        args, kwargs = pytree.tree_map_only(cls, lambda each: each.computed(name), (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types its default, which is disabled
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operator that came here without `__torch_function__`, as from C++, on the values."""
        args, kwargs = pytree.tree_map_only(cls, lambda each: each.computed(str(func)).detach(), (args, kwargs or {}))
        return func(*args, **kwargs)


@dataclass(slots=True)
class _Family:
    """The output of one pass through a layer, first, and all that was derived from it."""

    usage: Usage
    root: Product
    versions: tuple[int, ...]
    members: list["weakref.ref[DeferredLogits]"] = field(default_factory=list)

    def compute(self) -> None:
        """Computes all members. Gradients flow to the layer also if they are off at the moment."""
        with torch.inference_mode(False), torch.enable_grad():
            for member in (reference() for reference in self.members):
                if member is not None:
                    member._value = member._compute()

    def value(self) -> torch.Tensor:
        """Returns the output as the layer itself computes it."""
        self.check_unchanged()
        return self.root.value()

    def check_unchanged(self) -> None:
        """Checks that the layer's operands are as they were in the forward pass."""
        if self.root.versions() != self.versions:
            raise RuntimeError(
                "found logits that are used after the input or the weights of their layer have changed; with a chunked "
                "loss they were not computed in the forward pass. Use them before the optimizer's step, or leave the "
                "loss as it is."
            )


class _Edge(torch.autograd.Function):
    """Makes a deferred tensor with a gradient, for functions that get it without `__torch_function__`."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, product: Product, *form: Any) -> DeferredLogits:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.product_type, ctx.form = product.dtype, form
        return DeferredLogits(product, *form)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dtype, transposed = ctx.form
        needed = ctx.needs_input_grad[:3]
        operands: list[Any] = [
            each.detach().requires_grad_() if wanted else each
            for each, wanted in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            value = Product(operands[0], operands[1], operands[2], ctx.product_type).value().to(dtype)
            value = value.transpose(1, 2) if transposed else value
            leaves = [leaf for leaf, wanted in zip(operands, needed, strict=True) if wanted]
            found = iter(torch.autograd.grad(value, leaves, gradient))
        return (*(next(found) if wanted else None for wanted in needed), None, None, None)
