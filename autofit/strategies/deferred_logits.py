"""DeferredLogits: the output of a linear layer that is computed only if something else than a cross-entropy uses it.

The layer returns a tensor without memory. Reshaping, slicing and shifting its leading dimensions do the same to the
layer's input. `F.cross_entropy`, or `F.log_softmax` and `F.nll_loss`, then work on chunks of rows. Any other operation
computes the logits, so that it sees what it would have seen, and saves nothing.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from autofit.strategies.chunked_cross_entropy import Product, Reduction, chunked_cross_entropy
from autofit.strategies.deferred_operations import DEFERRED, METADATA

Replay = Callable[[torch.Tensor], torch.Tensor]

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
        dtype = None if _is_transformed() else _product_type(input, layer)
        if dtype is None:
            return nn.Linear.forward(layer, input)
        samples = input.shape[0] if input.dim() > 2 else 1  # [samples, tokens, features]
        product = Product(input, layer.weight, layer.bias, dtype, samples)
        return DeferredLogits.of(product, self.usage or Usage())


def _is_transformed() -> bool:
    """Returns whether torch.compile or a transform of torch.func (grad, vmap) runs this code."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


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
        normalized: whether this is the logarithm of the softmax.
    """

    product: Product
    transposed: bool
    normalized: bool
    _family: "_Family"
    _parent: "DeferredLogits | None"
    _replay: Replay
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
        return cls._made(product, product.dtype, _Family(usage, product, _versions(product)))

    @classmethod
    def _made(
        cls,
        product: Product,
        dtype: torch.dtype,
        family: "_Family",
        parent: "DeferredLogits | None" = None,
        replay: Replay = lambda value: value,
        *,
        transposed: bool = False,
        normalized: bool = False,
    ) -> "DeferredLogits":
        made: DeferredLogits = _Edge.apply(
            product.hidden, product.weight, product.bias, product, dtype, transposed, normalized
        )  # type: ignore[no-untyped-call]  # torch has no types here
        made.product, made.transposed, made.normalized = product, transposed, normalized
        made._family, made._parent, made._replay, made._value = family, parent, replay, None
        family.members.append(weakref.ref(made))
        return made

    def derived(self, replay: Replay, hidden: torch.Tensor | None = None, **changed: Any) -> "DeferredLogits":
        """Returns the deferred result of an operation.

        Args:
            replay: the operation.
            hidden: the layer's input after the operation; None if that does not change.
            changed: a new dtype, or new values of `transposed` and `normalized`.
        """
        product = self.product if hidden is None else replace(self.product, hidden=hidden)
        kept = {"dtype": self.dtype, "transposed": self.transposed, "normalized": self.normalized, **changed}
        return self._made(product, family=self._family, parent=self, replay=replay, **kept)

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
            self._family.usage.computed_for.append(operation)
            self._family.compute()
        assert self._value is not None, "a family computes all its members"
        return self._value

    def fused(self, target: torch.Tensor, weight: torch.Tensor | None, reduction: Reduction) -> torch.Tensor:
        """Returns the cross-entropy of these logits with class indices, without computing them."""
        self._family.check_unchanged()
        usage, rows = self._family.usage, target.numel()
        usage.fused_bytes += rows * self.product.weight.shape[0] * torch.float32.itemsize
        flat = replace(self.product, hidden=self.product.hidden.flatten(0, -2))
        if rows % flat.samples:
            flat = replace(flat, samples=1)
        dtype = torch.float32 if torch.is_autocast_enabled(self.device.type) else self.dtype
        loss = chunked_cross_entropy(flat, target.flatten(), weight, reduction).to(dtype)
        return loss.view_as(target) if reduction.kind == "none" else loss

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Defers `func` if it is known and nothing was computed yet; else computes the logits and runs it."""
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
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
            for reference in self.members:
                member = reference()
                if member is None:
                    continue
                if member._parent is None:
                    self.check_unchanged()
                    member._value = member.product.value()
                else:
                    member._value = member._replay(member._parent.computed(""))

    def check_unchanged(self) -> None:
        """Checks that the layer's operands are as they were in the forward pass."""
        if _versions(self.root) != self.versions:
            raise RuntimeError(
                "found logits that are used after the input or the weights of their layer have changed; with a chunked "
                "loss they were not computed in the forward pass. Use them before the optimizer's step, or leave the "
                "loss as it is."
            )


def _versions(product: Product) -> tuple[int, ...]:
    operands = (product.hidden, product.weight, *([] if product.bias is None else [product.bias]))
    return tuple(each._version for each in operands)


class _Edge(torch.autograd.Function):
    """Makes a deferred tensor with a gradient, for functions that get it without `__torch_function__`."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, product: Product, *form: Any) -> DeferredLogits:
        dtype, transposed, _ = form
        ctx.save_for_backward(hidden, weight, bias)
        ctx.product_type, ctx.form = product.dtype, form
        return DeferredLogits(product, dtype, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dtype, transposed, normalized = ctx.form
        needed = ctx.needs_input_grad[:3]
        operands: list[Any] = [
            each.detach().requires_grad_() if wanted else each
            for each, wanted in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            value = Product(operands[0], operands[1], operands[2], ctx.product_type).value().to(dtype)
            value = value.log_softmax(-1) if normalized else value
            value = value.transpose(1, 2) if transposed else value
            leaves = [leaf for leaf, wanted in zip(operands, needed, strict=True) if wanted]
            found = iter(torch.autograd.grad(value, leaves, gradient))
        return (*(next(found) if wanted else None for wanted in needed), None, None, None, None)
