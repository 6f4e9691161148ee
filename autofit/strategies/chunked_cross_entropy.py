"""Cross-entropy of a linear layer's output, computed over chunks of rows, so that the logits never exist as a whole.

`torch.nn.functional.linear_cross_entropy` (torch 2.13) does the same with gradients that its forward pass computes. It
has no label smoothing, is one opaque operator in a trace, and does not exist in torch 2.11.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

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


@dataclass(frozen=True, slots=True)
class Reduction:
    """How `torch.nn.functional.cross_entropy` ignores, smooths and reduces."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    kind: str = "mean"


def chunked_cross_entropy(
    product: Product, target: torch.Tensor, class_weight: torch.Tensor | None, reduction: Reduction
) -> torch.Tensor:
    """Returns `F.cross_entropy` of the product, in float32 or wider.

    Args:
        product: with `hidden` as [rows, features].
        target: class indices, [rows].
        class_weight: weight of each class, or None. It cannot be combined with label smoothing.
        reduction: how rows are ignored, smoothed and reduced.
    """
    ignored = target == reduction.ignore_index
    target = target.masked_fill(ignored, 0)
    wide = torch.promote_types(product.dtype, torch.float32)
    share = torch.ones_like(target, dtype=wide) if class_weight is None else class_weight.to(wide)[target]
    share = share.masked_fill(ignored, 0)
    rows = product.samples * math.ceil(max(len(target), 1) / (product.samples * CHUNKS))
    losses: torch.Tensor = _Losses.apply(  # type: ignore[no-untyped-call]  # torch has no types here
        product.hidden, product.weight, product.bias, target, reduction.label_smoothing, product.dtype, rows
    )
    losses = torch.where(ignored, 0, losses * share)
    if reduction.kind == "none":
        return losses
    return losses.sum() / share.sum() if reduction.kind == "mean" else losses.sum()


class _Losses(torch.autograd.Function):
    """The cross-entropy of each row. The backward pass computes the logits of each chunk again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        smoothing: float,
        dtype: torch.dtype,
        rows: int,
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
            _subtract_targets(slopes, target[part], ctx.smoothing)
            slopes.mul_(upstream[part].unsqueeze(1))
            if grad_bias is not None:
                grad_bias += slopes.sum(0)
            slopes = slopes.to(ctx.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = slopes @ weights
            if grad_weight is not None:
                _add_product(grad_weight, slopes.T, inputs.to(ctx.dtype))
            del slopes
        return grad_hidden, _as(grad_weight, weight), _as(grad_bias, bias), None, None, None, None


def _chunks(count: int, rows: int) -> Iterator[slice]:
    return (slice(start, start + rows) for start in range(0, count, rows))


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns new logits in float32 or wider, as `cross_entropy` uses them under autocast."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(weight.dtype), weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _subtract_targets(probabilities: torch.Tensor, target: torch.Tensor, smoothing: float) -> None:
    """Subtracts the target distribution from the probabilities: what is left is the gradient of the loss."""
    column = target.unsqueeze(1)
    chosen = probabilities.gather(1, column) - (1 - smoothing)
    probabilities.scatter_(1, column, chosen)
    if smoothing:
        probabilities.sub_(smoothing / probabilities.shape[1])


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _as(gradient: torch.Tensor | None, operand: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None or operand is None else gradient.to(operand.dtype)
