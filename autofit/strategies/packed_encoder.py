"""Packed encoder: the layers of a model of `transformers` run on packed rows and give hidden states for the batch's.

The model's embeddings have seen the batch's rows, so each token has its position already. The mask of the layers keeps
the samples of a row apart.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autofit.strategies.packed_decoder import depends_on_rows, named_arguments
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


def pack_encoder(
    stack: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], torch.Tensor] | None:
    """Returns the arguments of a call for packed rows, and the place of each of its tokens in them.

    None if the call is not packed. The arguments are those of `packed_decoder.pack_decoder`. The mask is [samples, 1,
    1 or width, width]: true where a token is seen, or 0 where it is and a large negative number where it is not.
    """
    given = named_arguments(users, args, kwargs)
    hidden, mask = given.get(HIDDEN), given.get(MASK)
    if (
        not isinstance(hidden, torch.Tensor)
        or not isinstance(mask, torch.Tensor)
        or depends_on_rows(stack, given, (HIDDEN, MASK))
    ):
        return None
    if hidden.dim() != 3 or mask.dim() != 4 or mask.shape[:2] != (len(hidden), 1) or mask.shape[3] != hidden.shape[1]:
        return None
    seen = mask[:, 0, -1]
    rows = packed_rows((seen if mask.dtype == torch.bool else seen == 0).cpu())
    if rows is None:
        return None
    sample = (rows.positions.diff(prepend=rows.positions[:, :1] - 1) != 1).cumsum(1)
    apart = (sample.unsqueeze(1) == sample.unsqueeze(2)).unsqueeze(1).to(mask.device)
    if mask.dtype != torch.bool:
        apart = torch.zeros_like(apart, dtype=mask.dtype).masked_fill(~apart, torch.finfo(mask.dtype).min)
    packed = hidden.flatten(0, 1)[rows.sources.to(hidden.device)]
    return given | {HIDDEN: packed, MASK: apart}, rows.places.to(hidden.device)


def encoder_lack(model: nn.Module) -> str | None:
    """Returns why the layers of a model that is not causal cannot be packed, or None."""
    found = list(stacks(model))
    if len(found) == 1 and not safe_getattr(safe_getattr(model, "config"), "is_encoder_decoder"):
        return None
    return f"{type(model).__name__} has no single stack of layers that takes {HIDDEN} and {MASK}"
