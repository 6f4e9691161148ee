"""Packable models: models of `transformers` whose layers can run packed rows, and the check that samples stay apart.

Above and below the layers nothing changes: tokens are packed on the way in, and hidden states unpacked on the way out.

A decoder is given the position of each token in its own sample. By these positions it keeps the samples of a row apart
in its attention, with any window (`transformers.masking_utils.find_packed_sequence_indices`). The embeddings of an
encoder have seen the batch's rows, so each token has its position already, and the mask of the layers keeps the samples
of a row apart.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from autofit.strategies.blocks import outermost
from autofit.strategies.packed_rows import moved, packed_rows
from autofit.strategies.undo import Undo
from autofit.workloads.lengths import IDS, MASK
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


def pack_decoder(decoder: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedCall | None:
    """Returns a call of `users`, the forward of a model, for packed rows.

    None if the call is not packed: nothing would be saved, or something else in it depends on the rows.
    """
    given = named_arguments(users, args, kwargs)
    rows = packed_rows(given[MASK].cpu()) if _can_pack(decoder, given) else None
    if rows is None:
        return None
    rows = rows.to(given["input_ids"].device)
    present = (name for name in TOKENS if given.get(name) is not None)
    packed = {name: given[name].flatten()[rows.sources.clamp(min=0)] for name in present}
    without = {MASK: None, "past_key_values": None, "use_cache": False}  # with a cache, rows are not kept apart
    return PackedCall(given | packed | without | {"position_ids": rows.positions}, rows.sources, rows.places)


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


HIDDEN = "hidden_states"


def is_stack(module: nn.Module) -> bool:
    """Returns whether a module has a list of layers and turns hidden states and a mask into hidden states."""
    listed = any(isinstance(child, nn.ModuleList) for child in module.children())
    return listed and [*inspect.signature(module.forward).parameters][:2] == [HIDDEN, MASK]


def pack_encoder(stack: Any, users: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedCall | None:
    """Returns a call for packed rows, as `pack_decoder`; None if the call is not packed.

    The mask is [samples, 1, 1 or width, width], the same for all tokens of a sample: true where a token is seen, or 0
    where it is and a large negative number where it is not.
    """
    given = named_arguments(users, args, kwargs)
    hidden: Any = given.get(HIDDEN)
    mask: Any = given.get(MASK)
    if not _can_pack_layers(hidden, mask) or depends_on_rows(stack, given, (HIDDEN, MASK)):
        return None
    seen = mask[:, 0, -1]
    rows = packed_rows((seen if mask.dtype == torch.bool else seen == 0).cpu())
    if rows is None:
        return None
    rows = rows.to(hidden.device)
    sample = (rows.positions.diff(prepend=rows.positions[:, :1] - 1) != 1).cumsum(1)
    apart = (sample.unsqueeze(1) == sample.unsqueeze(2)).unsqueeze(1)
    if mask.dtype != torch.bool:
        apart = torch.zeros_like(apart, dtype=mask.dtype).masked_fill(~apart, torch.finfo(mask.dtype).min)
    packed = {HIDDEN: moved(hidden, rows.sources, rows.places), MASK: apart}
    return PackedCall(given | packed, rows.sources, rows.places)


def _can_pack_layers(hidden: Any, mask: Any) -> bool:
    if not isinstance(hidden, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    if hidden.dim() != 3 or mask.dim() != 4 or mask.shape[:2] != (len(hidden), 1) or mask.shape[3] != hidden.shape[1]:
        return False
    return mask.shape[2] == 1 or mask.stride(2) == 0 or bool((mask == mask[:, :, -1:]).all())


def encoder_lack(model: nn.Module) -> str | None:
    """Returns why the layers of a model that is not causal cannot be packed, or None."""
    found = list(outermost(model, is_stack))
    if len(found) == 1 and not safe_getattr(safe_getattr(model, "config"), "is_encoder_decoder"):
        return None
    return f"{type(model).__name__} has no single stack of layers that takes {HIDDEN} and {MASK}"


MOST_CHANGE = 1e-5
"""Maximum change of a hidden state by tokens of another sample, relative to its norm. Attention that keeps samples
apart changes nothing, in any precision. Of eight decoders that do not, the smallest change was 3e-4. The experts of a
routed model are given other groups of tokens, which may round in another way."""


def packable_models(model: nn.Module) -> Iterator[Any]:
    """Yields the outermost models of `transformers` that turn tokens and their mask into hidden states."""
    return outermost(model, _is_packable)


def _is_packable(module: nn.Module) -> bool:
    of_transformers = callable(safe_getattr(module, "set_attn_implementation"))
    innermost = of_transformers and safe_getattr(module, "base_model") is module and not _has_head(module)
    return innermost and inspect.signature(module.forward).parameters.keys() >= {IDS, MASK}


def lack(model: nn.Module) -> str | None:
    """Returns why the models in a user's model cannot run packed rows, or None."""
    found = list(packable_models(model))
    if not found:
        return "the model has no part that is a language model of transformers and can keep the samples of a row apart"
    for each in found:
        name, config = type(each).__name__, each.config
        if (used := safe_getattr(config, "_attn_implementation")) not in IMPLEMENTATIONS:
            return f"{name} has attn_implementation={used!r}; expected {' or '.join(IMPLEMENTATIONS)}"
        if asked := next((name for name in OUTPUTS if safe_getattr(config, name)), None):
            return f"{name} has {asked}=True, and the results of its layers would come in packed rows"
        if reason := decoder_lack(each) if _is_causal(each) else encoder_lack(each):
            return reason
    return None


@contextmanager
def packing(found: Iterable[Any]) -> Iterator[set[Any]]:
    """Lets models run packed rows until the context is left, and yields the modules that have done so."""
    packed = set[Any]()
    with Undo() as undo:
        for target, forward in _packed_forwards(found, packed):
            undo.replace(vars(target), "forward", forward)
        yield packed


def pack_for_good(found: Iterable[Any]) -> None:
    """Lets models run packed rows as long as they exist."""
    for target, forward in _packed_forwards(found, set()):
        target.forward = forward


def mixing(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> str:
    """Returns that a model did not run packed rows, or that it mixed the samples of a row; "" if it did not.

    The arguments are those of `change_of_others`.
    """
    change, name = change_of_others(model, ids, mask), type(model).__name__
    if change is None:
        return f"{name} did not run packed rows when it was called with {IDS} and {MASK}"
    if change <= MOST_CHANGE:
        return ""
    return (
        f"{name} does not keep the samples of a row apart: other tokens in one sample change hidden states of the next "
        f"by up to {change:.1e} of their norm"
    )


def change_of_others(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> float | None:
    """Returns how much other tokens in the first sample of each packed row change the hidden states of the others.

    It is the largest change of a token's hidden state, relative to its norm: 0 if the samples of a row are kept apart.
    None if the model, one of `packable_models`, did not run packed rows. It runs in evaluation mode; its modes are
    restored. Tokens and mask are [samples, width], and need fewer rows than they have.
    """
    rows = packed_rows(mask.cpu())
    assert rows is not None, "the samples need fewer rows"
    first = rows.sources[:, 0] // mask.shape[1]  # the samples that begin a packed row
    changed = torch.zeros(len(mask), dtype=torch.bool).index_fill(0, first, True)
    others = ids.clone()
    chance = torch.Generator().manual_seed(0)
    others[changed] = torch.randint(int(ids.max()) + 1, ids.shape, generator=chance, dtype=ids.dtype)[changed]
    device = next(model.parameters()).device
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with packing([model]) as packed, torch.enable_grad():
            one, other = (
                model(input_ids=each.to(device), **{MASK: mask.to(device)})[0].detach().float().cpu()
                for each in (ids, others)
            )
    finally:
        for module, training in modes.items():
            module.training = training
    kept = (mask.cpu() != 0) & ~changed[:, None]
    return None if not packed else float(((other - one).norm(dim=-1) / one.norm(dim=-1).clamp_min(1e-12))[kept].max())


def _has_head(module: Any) -> bool:
    """Returns whether a model turns hidden states into something else, such as logits."""
    with suppress(Exception):  # models of some versions raise NotImplementedError
        return module.get_output_embeddings() is not None
    return False


def _is_causal(model: nn.Module) -> bool:
    return any(safe_getattr(module, "is_causal") is True for module in model.modules())


def _packed_forwards(found: Iterable[Any], packed: set[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields modules and the `forward` by which each runs packed rows and notes it in `packed`."""
    if not _uncompiled:
        disable: Any = torch.compiler.disable  # imports the compiler, as transformers has done
        _uncompiled.update({True: disable(pack_decoder), False: disable(pack_encoder)})
    for each in found:
        causal = _is_causal(each)
        for target in (each,) if causal else outermost(each, is_stack):
            users: Any = target.forward
            forward: Any = partial(_forward, target, users, packed, causal)
            forward.__signature__ = inspect.signature(users)
            yield target, forward


_uncompiled: dict[bool, Callable[..., PackedCall | None]] = {}
"""`pack_decoder` and `pack_encoder`, by whether a model is causal, as torch.compile calls them without compiling them:
what they do depends on the lengths. They are not in the module's `forward`, so that a model can be pickled."""


def _forward(target: Any, users: Any, packed: set[Any], causal: bool, *args: Any, **kwargs: Any) -> Any:
    """Runs the user's `forward` of a module on packed rows, and returns its output for the rows of the batch.

    Rows are not packed where the module is evaluated, or generates text. They are packed in training also where no
    gradient is computed, since the same pass may run again with one, and must draw the same random numbers.
    """
    pack = _uncompiled.get(causal) or (pack_decoder if causal else pack_encoder)  # empty where a model was unpickled
    found = pack(target, users, args, kwargs) if torch.is_grad_enabled() or target.training else None
    if found is None:
        return users(*args, **kwargs)
    packed.add(target)
    output = users(**found.arguments)
    hidden = output if isinstance(output, torch.Tensor) else output[0]
    whole = moved(hidden, found.places, found.sources)
    if output is hidden:
        return whole
    if isinstance(output, tuple):
        return (whole, *output[1:])
    output.last_hidden_state = whole
    return output
