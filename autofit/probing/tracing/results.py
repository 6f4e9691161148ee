"""Results: those of CUDA's operators, with the strides and in the order in which the CUDA code allocates them.

Fake tensors get theirs from code of its own, which is right about sizes, but not always about layout, and on a stand-in
device chooses other kernels.
"""

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def laid_out(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """Returns the results of an operator with the strides that the CUDA code gives them, where fake ones differ."""
    if func is aten.convolution.default:
        return _last(out) if any(map(is_channels_last, args[:2])) else out
    if func is aten.convolution_backward.default and any(map(is_channels_last, args[1:3])):
        return (*(None if each is None else _last(each) for each in out[:2]), out[2])
    if func is aten.native_batch_norm_backward.default and is_channels_last(args[1]):
        return (None if out[0] is None else _last(out[0]), *out[1:])
    return out


def _last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor
    return torch.empty_like(tensor, memory_format=torch.channels_last)


def results(func: Any, args: tuple[Any, ...], out: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of an operator that are allocated on a CUDA device, in that order."""
    if func is aten.native_batch_norm_backward.default and channels_innermost(args[1]):
        return out[1], out[2], out[0]
    order = ORDERS.get(func)
    return out if order is None else [out[place] for place in order]


def channels_innermost(tensor: torch.Tensor) -> bool:
    """Says whether the channels of images, or of vectors, lie next to each other."""
    if tensor.dim() == 2:
        return tensor.is_contiguous()
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and tensor.stride(1) == 1


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Says whether the layout is channels last and nothing else; a 1x1 kernel can be read both ways."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


ORDERS: dict[Any, tuple[int, ...]] = {
    aten.native_dropout.default: (1, 0),
    aten.nll_loss2d_forward.default: (1, 0),
    aten._scaled_dot_product_efficient_attention.default: (0, 1),  # the state of the random numbers is on the host
}
"""The results that are allocated, in that order, where it is not simply all of them in turn."""
