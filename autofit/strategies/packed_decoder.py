"""Packed decoder: a causal model of `transformers` that runs on packed rows and gives hidden states for the batch's.

It is given the position of each token in its own sample. By these positions it keeps the samples of a row apart in its
attention, with any window (`transformers.masking_utils.find_packed_sequence_indices`).
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autofit.strategies.packed_rows import PackedRows, packed_rows
from autofit.workloads.lengths import MASK
from autofit.workloads.tree import safe_getattr, tensors

PARAMETERS = {"input_ids", MASK, "position_ids", "past_key_values", "use_cache"}
"""Parameters of the decoders of `transformers`."""
TOKENS = ("input_ids", "token_type_ids")
"""Arguments with one number for each token."""
OUTPUTS = ("output_attentions", "output_hidden_states", "output_router_logits")
"""Arguments and settings that ask for results of each layer, which would come in packed rows."""
IMPLEMENTATIONS = ("sdpa", "eager")
"""Implementations of attention that keep the samples of a row apart. Flash attention does so in a batch of one row
only."""


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A call of a module on packed rows.

    Attributes:
        arguments: its arguments, by name.
        sources, places: where each token comes from and where it is, on the device (`packed_rows.PackedRows`).
    """

    arguments: dict[str, Any]
    sources: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, rows: PackedRows, arguments: dict[str, Any], device: torch.device) -> "PackedCall":
        """Returns the call with its indices on a device."""
        return cls(arguments, rows.sources.to(device), rows.places.to(device))


def pack_decoder(decoder: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedCall | None:
    """Returns a call for packed rows.

    None if the call is not packed: nothing would be saved, or something else in it depends on the rows.

    Args:
        decoder: the model.
        users: its `forward`.
        args: positional arguments of the call.
        kwargs: its other arguments.
    """
    given = named_arguments(users, args, kwargs)
    rows = packed_rows(given[MASK].cpu()) if _can_pack(decoder, given) else None
    if rows is None:
        return None
    found = PackedCall.of(rows, given, given["input_ids"].device)
    present = (name for name in TOKENS if given.get(name) is not None)
    packed = {name: given[name].flatten()[found.sources.clamp(min=0)] for name in present}
    positions = rows.positions.to(found.sources.device)
    without = {MASK: None, "past_key_values": None, "use_cache": False}  # with a cache, rows are not kept apart
    found.arguments.update(packed | without | {"position_ids": positions})
    return found


def decoder_lack(decoder: Any) -> str | None:
    """Returns why a causal model cannot run packed rows, or None."""
    name = type(decoder).__name__
    if missing := sorted(PARAMETERS - inspect.signature(decoder.forward).parameters.keys()):
        return f"the forward of {name} has no {' and no '.join(missing)}, by which samples of a row are kept apart"
    masks = sys.modules.get("transformers.masking_utils")
    of_transformers = type(decoder).__module__.partition(".")[0] == "transformers"
    if of_transformers and not hasattr(masks, "find_packed_sequence_indices"):
        return "this version of transformers does not keep the samples of a row apart by their positions"
    return None


def named_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a call by name."""
    signature = inspect.signature(function)
    found = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def depends_on_rows(module: Any, given: Mapping[str, Any], packed: tuple[str, ...]) -> bool:
    """Returns whether a call has more to pack than the arguments of these names, or asks for more than hidden states.

    That is a cache, which text is generated with, or the results of each layer.
    """
    config = safe_getattr(module, "config")
    asked = given.get("use_cache") is True or any(given.get(name) or safe_getattr(config, name) for name in OUTPUTS)
    others = [value for name, value in given.items() if name not in packed]
    return asked or given.get("past_key_values") is not None or any(tensor.dim() for tensor in tensors(others))


def _can_pack(decoder: Any, given: Mapping[str, Any]) -> bool:
    ids, mask, types = given.get("input_ids"), given.get(MASK), given.get("token_type_ids")
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor) or ids.dim() != 2:
        return False
    same = mask.shape == ids.shape and (types is None or types.shape == ids.shape)
    apart = safe_getattr(decoder.config, "_attn_implementation") in IMPLEMENTATIONS
    return same and apart and not depends_on_rows(decoder, given, (*TOKENS, MASK))
