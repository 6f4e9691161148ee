"""Packed decoder: a causal model of `transformers` that runs on packed rows and gives hidden states for the batch's.

It is given the position of each token in its own sample. By these positions it keeps the samples of a row apart in its
attention, with any window (`transformers.masking_utils.find_packed_sequence_indices`).
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from autofit.strategies.packed_rows import packed_rows
from autofit.workloads.lengths import MASK
from autofit.workloads.tree import safe_getattr

PARAMETERS = {"input_ids", MASK, "position_ids", "past_key_values", "use_cache"}
"""Parameters of the decoders of `transformers`."""
TOKENS = ("input_ids", "token_type_ids")
"""Arguments with one number for each token."""
OUTPUTS = ("output_attentions", "output_hidden_states", "output_router_logits")
"""Arguments and settings that ask for results of each layer, which would come in packed rows."""


def pack_decoder(
    decoder: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], torch.Tensor] | None:
    """Returns the arguments of a call for packed rows, and the place of each of its tokens in them.

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
    device = given["input_ids"].device
    sources = rows.sources.to(device)
    packed = {name: given[name].flatten()[sources] for name in TOKENS if given.get(name) is not None}
    without = {MASK: None, "past_key_values": None, "use_cache": False}  # with a cache, rows are not kept apart
    return given | packed | without | {"position_ids": rows.positions.to(device)}, rows.places.to(device)


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
    asked = given.get("use_cache") is True or any(
        given.get(name) or safe_getattr(safe_getattr(module, "config"), name) for name in OUTPUTS
    )
    others = (value for name, value in given.items() if name not in packed)
    tensors = any(isinstance(value, torch.Tensor) and value.dim() for value in others)
    return asked or tensors or given.get("past_key_values") is not None


def _can_pack(decoder: Any, given: Mapping[str, Any]) -> bool:
    ids, mask, types = given.get("input_ids"), given.get(MASK), given.get("token_type_ids")
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor) or ids.dim() != 2:
        return False
    same = mask.shape == ids.shape and (types is None or types.shape == ids.shape)
    return same and not depends_on_rows(decoder, given, (*TOKENS, MASK))
