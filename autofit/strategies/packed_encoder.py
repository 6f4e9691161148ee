"""Packed encoder: the layers of a model of `transformers` run on packed rows and give hidden states for the batch's.

The model's embeddings have seen the batch's rows, so each token has its position already. The mask of the layers keeps
the samples of a row apart.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autofit.strategies.moved_tokens import moved
from autofit.strategies.packed_decoder import PackedCall, depends_on_rows, named_arguments
from autofit.strategies.packed_rows import packed_rows
from autofit.workloads.lengths import MASK
from autofit.workloads.tree import safe_getattr

HIDDEN = "hidden_states"


def stacks(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost modules with a list of layers that turn hidden states and a mask into hidden states."""
    listed = any(isinstance(child, nn.ModuleList) for child in module.children())
    if listed and [*inspect.signature(module.forward).parameters][:2] == [HIDDEN, MASK]:
        yield module
        return
    for child in module.children():
        yield from stacks(child)


def pack_encoder(stack: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedCall | None:
    """Returns a call for packed rows; None if the call is not packed.

    The arguments are those of `packed_decoder.pack_decoder`. The mask is [samples, 1, 1 or width, width], the same for
    all tokens of a sample: true where a token is seen, or 0 where it is and a large negative number where it is not.
    """
    given = named_arguments(users, args, kwargs)
    hidden: Any = given.get(HIDDEN)
    mask: Any = given.get(MASK)
    if not _can_pack(hidden, mask) or depends_on_rows(stack, given, (HIDDEN, MASK)):
        return None
    seen = mask[:, 0, -1]
    rows = packed_rows((seen if mask.dtype == torch.bool else seen == 0).cpu())
    if rows is None:
        return None
    found = PackedCall.of(rows, given, hidden.device)
    sample = (rows.positions.diff(prepend=rows.positions[:, :1] - 1) != 1).cumsum(1).to(mask.device)
    apart = (sample.unsqueeze(1) == sample.unsqueeze(2)).unsqueeze(1)
    if mask.dtype != torch.bool:
        apart = torch.zeros_like(apart, dtype=mask.dtype).masked_fill(~apart, torch.finfo(mask.dtype).min)
    found.arguments.update({HIDDEN: moved(hidden, found.sources, found.places), MASK: apart})
    return found


def _can_pack(hidden: Any, mask: Any) -> bool:
    if not isinstance(hidden, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    if hidden.dim() != 3 or mask.dim() != 4 or mask.shape[:2] != (len(hidden), 1) or mask.shape[3] != hidden.shape[1]:
        return False
    return mask.shape[2] == 1 or mask.stride(2) == 0 or bool((mask == mask[:, :, -1:]).all())


def encoder_lack(model: nn.Module) -> str | None:
    """Returns why the layers of a model that is not causal cannot be packed, or None."""
    found = list(stacks(model))
    if len(found) == 1 and not safe_getattr(safe_getattr(model, "config"), "is_encoder_decoder"):
        return None
    return f"{type(model).__name__} has no single stack of layers that takes {HIDDEN} and {MASK}"
