"""Packed decoders: models of `transformers` that are run on packed rows and give hidden states for the batch's rows.

Above and below a decoder nothing changes: the tokens of a batch are packed when it is called, and its hidden states are
unpacked when it returns.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from autofit.strategies.packed_rows import PackedRows, packed_rows
from autofit.strategies.undo import Undo
from autofit.workloads.batch_algebra import leaves
from autofit.workloads.lengths import MASK
from autofit.workloads.tree import Batch, safe_getattr

IMPLEMENTATIONS = ("sdpa", "eager")
"""Implementations of attention that keep the samples of a row apart by their positions (`transformers.masking_utils`).
Flash attention does so in a batch of one row only."""
PARAMETERS = {"input_ids", MASK, "position_ids", "past_key_values", "use_cache"}
"""Parameters of the decoders of `transformers`."""
TOKENS = ("input_ids", "token_type_ids")
"""Arguments with one number for each token."""
OUTPUTS = ("output_attentions", "output_hidden_states", "output_router_logits")
"""Arguments and settings that ask for results of each layer, which would come in packed rows."""

Pack = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], tuple[dict[str, Any], torch.Tensor] | None]
"""The type of `_pack`."""


def decoders(module: nn.Module) -> Iterator[Any]:
    """Yields the outermost models of `transformers` that turn tokens into hidden states and take their positions."""
    of_transformers = callable(safe_getattr(module, "set_attn_implementation"))
    innermost = of_transformers and safe_getattr(module, "base_model") is module
    if innermost and inspect.signature(module.forward).parameters.keys() >= PARAMETERS:
        yield module
        return
    for child in module.children():
        yield from decoders(child)


def lack(model: nn.Module) -> str | None:
    """Returns why the decoders of a model cannot run packed rows, or None."""
    found = list(decoders(model))
    if not found:
        return "the model has no decoder of transformers, which can keep the samples of a row apart by their positions"
    for decoder in found:
        name, config = type(decoder).__name__, decoder.config
        if not any(safe_getattr(module, "is_causal") is True for module in decoder.modules()):
            return f"the attention of {name} is not causal"
        if (used := safe_getattr(config, "_attn_implementation")) not in IMPLEMENTATIONS:
            return f"{name} has attn_implementation={used!r}; expected {' or '.join(IMPLEMENTATIONS)}"
        if asked := next((name for name in OUTPUTS if safe_getattr(config, name)), None):
            return f"{name} has {asked}=True, and the results of its layers would come in packed rows"
    return None


@contextmanager
def packing(found: Iterable[Any]) -> Iterator[None]:
    """Lets decoders run packed rows until the context is left."""
    with Undo() as undo:
        for decoder in found:
            undo.replace(vars(decoder), "forward", partial(_forward, decoder, decoder.forward, _uncompiled()))
        yield


def tokens_of(batch: Batch) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the tokens and the mask of a batch, both [samples, width]; None if it does not name them."""
    named = {path.rpartition(".")[2]: leaf for path, leaf, _ in leaves(batch, -1) if isinstance(leaf, torch.Tensor)}
    ids, mask = named.get("input_ids"), named.get(MASK)
    if ids is None or mask is None or ids.dim() != 2 or ids.shape != mask.shape:
        return None
    return ids, mask


def rows_of(batch: Batch) -> int | None:
    """Returns how many rows the samples of a batch need; None if the batch does not say what is padding."""
    found = tokens_of(batch)
    if found is None:
        return None
    packed = packed_rows(found[1].cpu())
    return len(found[0]) if packed is None else packed.count


@torch.no_grad()
def change_of_others(decoder: Any, batch: Batch) -> float:
    """Returns how much other tokens in the first sample of each packed row change the hidden states of the others.

    It is the largest change of a token's hidden state, relative to its norm: 0 if the samples of a row are kept apart.
    The decoder runs in evaluation mode; its modes are restored.
    """
    found = tokens_of(batch)
    rows = None if found is None else packed_rows(found[1].cpu())
    assert found is not None, "the batch has a mask"
    assert rows is not None, "the batch needs fewer rows"
    ids, mask = found
    changed = _first_in_row(rows, mask.shape[1]) & (mask.cpu() != 0).any(1)
    others = ids.clone()
    chance = torch.Generator().manual_seed(0)
    others[changed] = torch.randint(int(ids.max()) + 1, ids.shape, generator=chance, dtype=ids.dtype)[changed]
    device = next(decoder.parameters()).device
    modes = {module: module.training for module in decoder.modules()}
    try:
        decoder.eval()
        with packing([decoder]):
            one, other = (
                decoder(input_ids=each.to(device), **{MASK: mask.to(device)})[0].float().cpu() for each in (ids, others)
            )
    finally:
        for module, training in modes.items():
            module.training = training
    kept = (mask.cpu() != 0) & ~changed[:, None]
    return float(((other - one).norm(dim=-1) / one.norm(dim=-1).clamp_min(1e-12))[kept].max())


def _first_in_row(rows: PackedRows, width: int) -> torch.Tensor:
    """Returns which samples begin a packed row, [samples]."""
    starts = rows.sources[:, 0] // width
    return torch.zeros(len(rows.places), dtype=torch.bool).index_fill(0, starts, True)


def _forward(decoder: Any, users: Any, pack: Pack, *args: Any, **kwargs: Any) -> Any:
    """Runs the user's `forward` of a decoder on packed rows, and returns its output for the rows of the batch."""
    found = pack(decoder, users, args, kwargs)
    if found is None:
        return users(*args, **kwargs)
    arguments, places = found
    output = users(**arguments)
    whole = output[0].flatten(0, 1)[places]
    if isinstance(output, tuple):
        return (whole, *output[1:])
    output.last_hidden_state = whole
    return output


def _pack(
    decoder: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], torch.Tensor] | None:
    """Returns the arguments for packed rows and the place of each token in them; None if a call is not packed."""
    given = _named(inspect.signature(users), args, kwargs)
    rows = packed_rows(given[MASK].cpu()) if _can_pack(decoder, given) else None
    if rows is None:
        return None
    device = given["input_ids"].device
    sources = rows.sources.to(device)
    packed = {name: given[name].flatten()[sources] for name in TOKENS if given.get(name) is not None}
    without = {MASK: None, "past_key_values": None, "use_cache": False}  # with a cache, rows are not kept apart
    return given | packed | without | {"position_ids": rows.positions.to(device)}, rows.places.to(device)


@cache
def _uncompiled() -> Pack:
    """Returns `_pack` as a function that torch.compile calls and does not compile: it depends on the lengths."""
    disable: Any = torch.compiler.disable  # imports the compiler, as transformers has done
    found: Pack = disable(_pack)
    return found


def _named(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns all arguments of a call by name."""
    found = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def _can_pack(decoder: Any, given: Mapping[str, Any]) -> bool:
    """Returns whether a call has tokens with a mask, and nothing else that depends on the rows."""
    ids, mask = given.get("input_ids"), given.get(MASK)
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor) or ids.dim() != 2:
        return False
    if mask.shape != ids.shape or any(given.get(name) or safe_getattr(decoder.config, name) for name in OUTPUTS):
        return False
    types = given.get("token_type_ids")
    others = {name: value for name, value in given.items() if name not in (*TOKENS, MASK)}
    return (
        (types is None or types.shape == ids.shape)
        and not any(isinstance(value, torch.Tensor) and value.dim() for value in others.values())
        and all(others.get(name) is None for name in ("past_key_values", "inputs_embeds"))
    )
