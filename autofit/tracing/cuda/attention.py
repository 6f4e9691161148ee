"""Attention: the kernel that `scaled_dot_product_attention` runs on a CUDA device, with its arguments.

It follows `sdp::select_sdp_backend` and `scaled_dot_product_attention` (aten/src/ATen/native/transformers), in the
order of torch 2.11 and 2.13: cuDNN (compute capability 9.0 and up), flash, memory-efficient, math (plain products).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from autofit.tracing.cuda.autocast import HALF
from autofit.tracing.cuda.reduce_config import Chip
from autofit.tracing.cuda.results import first

aten = torch.ops.aten


def attention(  # noqa: PLR0913, PLR0917  # the arguments of the function that it stands for
    chip: Chip,
    original: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Returns the attention of (batch, heads, time, width) by the operator that runs on `chip`."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    kernel = _chosen(chip, query, key, value, attn_mask, enable_gqa)
    if kernel is None:
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if kernel == "flash":
        width = query.shape[-1]
        padded = [x if width % 8 == 0 else pad(x, [0, 8 - width % 8]) for x in (query, key, value)]
        run = aten._scaled_dot_product_flash_attention
        return first(list(run(*padded, dropout_p, is_causal, False, scale=scale)))[..., :width]
    bias = None if attn_mask is None else _bias(attn_mask, query, key, align=kernel == "efficient")
    if kernel == "cudnn":
        run = aten._scaled_dot_product_cudnn_attention
        return first(list(run(query, key, value, bias, wanted, dropout_p, is_causal, False, scale=scale)))
    run = aten._scaled_dot_product_efficient_attention
    return first(list(run(query, key, value, bias, wanted, dropout_p, is_causal, scale=scale)))


def _chosen(
    chip: Chip,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    grouped: bool,
) -> str | None:
    """Returns the kernel's name; None for plain products. Not one that is disabled by a flag or by `sdpa_kernel`."""
    dtype, width = query.dtype, query.shape[-1]
    flags: Any = torch.backends.cuda  # torch has no types here
    alike = len({x.shape[-1] for x in (query, key, value)}) == 1
    shaped = all(x.dim() == 4 and x.stride(-1) == 1 and x.dtype is dtype for x in (query, key, value))
    if not shaped or (mask is not None and mask.requires_grad and chip.capability < (8, 0)):
        return None
    half = dtype in HALF and chip.capability >= (8, 0)
    if flags.cudnn_sdp_enabled() and half and chip.capability >= (9, 0) and width % 8 == 0 and width <= 128 and alike:
        return "cudnn"
    if flags.flash_sdp_enabled() and half and mask is None and alike and width <= 256:
        return "flash"
    aligned = all(x.shape[-1] % (4 if dtype is torch.float32 else 8) == 0 for x in (query, key, value))
    known = dtype in (torch.float32, torch.float16) or (dtype is torch.bfloat16 and half)
    efficient = flags.mem_efficient_sdp_enabled() and known and aligned and not grouped
    return "efficient" if efficient else None


ROW = 8
"""Number of elements of which the strides of a mask must be a multiple (`mem_eff_alignment`)."""


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor, align: bool) -> torch.Tensor:
    """Returns the mask as an additive bias for every head, padded if the efficient kernel cannot read its rows.

    Sources: `aligned_tensor` and `pad_bias` in native/transformers/attention.cpp. A row whose length is already a
    multiple gets a whole pad.
    """
    if mask.dtype is torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if align and (mask.stride(-1) != 1 or any(stride % ROW for stride in mask.stride()[:-1])):
        mask = pad(mask, [0, ROW - mask.shape[-1] % ROW])[..., : mask.shape[-1]]
    return mask.expand(shape)
