"""Attention: another implementation of the same products, where the model or the device has one that may be faster."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autofit.core.errors import Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import has_compiled_part
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

KNOB = "attention"
VALUES = ("default", "sdpa", "flash")
ABOUT = "implementation of attention"
IMPLEMENTATION = "_attn_implementation_internal"
"""Attribute of a transformers configuration that its models read at each call."""
CUDNN = "cudnn_attention"
"""Capability of devices on which torch prefers cuDNN's attention to flash."""
NEEDS_WEIGHTS = "output_attentions=True needs the attention weights, which only the eager implementation returns"
MOST_CUDNN_WIDTH = 128
"""Maximum width of a head for cuDNN's attention (`check_cudnn_hardware_support` and `check_for_head_dim`)."""
_FLAGS: Any = torch.backends.cuda


class Attention(Strategy):
    """The attention of a transformers model, or the kernel of `scaled_dot_product_attention`.

    * "sdpa": a transformers model that computes attention by plain products ("eager") calls
      `scaled_dot_product_attention` instead.
    * "flash": the flash kernel, on devices where torch would run cuDNN's.

    The kernels are alternatives for 16-bit attention without a mask. In float32 torch has only one fused kernel.
    """

    name = "attention"
    about = "runs attention by another implementation"
    cost = "nothing, but random numbers of dropout are drawn in another way"
    effect = "rounding"
    phase = Phase.MODULES
    owns = (KNOB,)
    gated = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `attention` with the implementation that may be faster than the default."""
        owners = tuple(_owners(facts.model))
        eager = [owner for owner in owners if _implementation(owner) == "eager"]
        if eager:
            reason = next((why for owner in eager if (why := _lack(owner, facts.batch)) is not None), None)
            value = "sdpa"
        elif CUDNN not in facts.capabilities:
            reason = "scaled_dot_product_attention has no other fused kernel on this device than its default"
            return self.refuse(reason, origin="device")
        else:
            reason, value = None, "flash"
        reason = reason or _seen(facts, value)
        if reason is not None:
            return self.refuse(reason)
        why = "it stores all attention weights, which the fused kernels do not"
        refused = () if eager else (Refusal(name=f"{KNOB}=math", reason=why),)
        expected = (1.0, 1.0) if value == "flash" else ()  # the default is a fused kernel, too
        knob = Knob(name=KNOB, values=("default", value), default="default", about=ABOUT, expected=expected)
        return Offer((knob,), refused)

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Switches the models' implementation, or excludes cuDNN's kernel in the whole process.

        Raises:
            SpaceError: the value is unknown, or no transformers model here can be switched.
        """
        value = plan.values.get(KNOB, "default")
        if value == "default":
            return nullcontext()
        if value not in VALUES:
            raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)}")
        if value == "flash":
            return _without_cudnn()
        eager = [owner for owner in _owners(draft.model) if _implementation(owner) == "eager"]
        reason = next((why for owner in eager if (why := _lack(owner, None)) is not None), None)
        if not eager or reason is not None:
            found = reason or "no transformers model here has attn_implementation='eager'"
            raise unknown_value(KNOB, value, f"default, since {found}")
        return _switched(draft.model)


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the outermost transformers models."""
    if callable(getattr(module, "set_attn_implementation", None)) and hasattr(module, "config"):
        yield module
        return
    for child in module.children():
        yield from _owners(child)


def _implementation(owner: Any) -> str | None:
    found: str | None = getattr(owner.config, "_attn_implementation", None)
    return found


def _lack(owner: Any, batch: Any) -> str | None:
    """Returns why a transformers model cannot be switched to `scaled_dot_product_attention`, or None."""
    name = type(owner).__name__
    asked = isinstance(batch, Mapping) and batch.get("output_attentions") is True
    if getattr(owner.config, "output_attentions", False) or asked:
        return NEEDS_WEIGHTS
    if any(getattr(part, "_supports_sdpa", True) is False for part in owner.modules()):
        return f"{name} does not support scaled_dot_product_attention in this version of transformers"
    settable = getattr(owner, "_can_set_attn_implementation", None)
    if settable is not None and not settable():
        return f"{name} cannot change its attention after it was made; pass attn_implementation='sdpa' when making it"
    if has_compiled_part(owner):
        return f"{name} is compiled; pass it uncompiled"
    return None


def _seen(facts: Facts, value: str) -> str | None:
    """Returns why one step of the user would not run attention by `value`, or None."""
    if facts.rehearse is None:
        return "the user's step could not be inspected"
    calls = _Calls()

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        with _switched(model) if value == "sdpa" else nullcontext(), calls.of(model):
            yield

    failed = ""
    try:
        facts.rehearse(watch)
    except Untraceable as error:
        failed = f"the user's step cannot be run without data: {error.reason} ({error.where})"
    if calls.wants_weights or failed:
        return NEEDS_WEIGHTS if calls.wants_weights else failed
    if not calls.count:
        return "the user's step does not call scaled_dot_product_attention"
    if value == "flash" and not calls.either:
        return "no call of scaled_dot_product_attention could run both cuDNN's kernel and flash: they need no mask"
    if value == "flash" and facts.numerics == "exact" and not calls.half:
        return "attention is computed in float32, for which torch has only one fused kernel"
    return None


class _Calls(TorchFunctionMode):
    """Watches the calls of `scaled_dot_product_attention`.

    Attributes:
        count: number of calls.
        either: whether cuDNN's kernel and flash both support one of them, up to its type.
        half: whether one of them is in 16 bits.
        wants_weights: whether a transformers model was asked for its attention weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count, self.either, self.half, self.wants_weights = 0, False, False, False
        self._function = functional.scaled_dot_product_attention

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Watches a step of a copied model, which is discarded."""
        for owner in _owners(model):
            owner.register_forward_pre_hook(self._asked, with_kwargs=True)
        # The mode sees every call but those inside a function that it runs, such as multi_head_attention_forward. These
        # go through the module.
        functional.scaled_dot_product_attention = self._noted
        try:
            with self:
                yield
        finally:
            functional.scaled_dot_product_attention = self._function

    def _asked(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.wants_weights |= kwargs.get("output_attentions") is True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes a call and runs it."""
        return (self._noted if func is self._function else func)(*args, **(kwargs or {}))

    def _noted(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        query, mask = args[0] if args else kwargs["query"], args[3] if len(args) > 3 else kwargs.get("attn_mask")
        width = query.shape[-1]
        self.count += 1
        self.half |= query.dtype.itemsize == torch.float16.itemsize
        self.either |= query.dim() == 4 and mask is None and width % 8 == 0 and width <= MOST_CUDNN_WIDTH
        return self._function(*args, **kwargs)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    with Undo() as undo:
        undo.callback(_FLAGS.enable_cudnn_sdp, _FLAGS.cudnn_sdp_enabled())
        _FLAGS.enable_cudnn_sdp(False)
        yield


@contextmanager
def _switched(model: nn.Module) -> Iterator[None]:
    """Switches the transformers models in `model` from plain products to `scaled_dot_product_attention`."""
    with Undo() as undo:
        for owner in _owners(model):
            for config in _configurations(owner):
                undo.callback(vars(config).update, {IMPLEMENTATION: vars(config)[IMPLEMENTATION]})
            if _implementation(owner) == "eager":
                switch: Any = owner
                switch.set_attn_implementation("sdpa")
        yield


def _configurations(owner: nn.Module) -> list[Any]:
    """Returns the configurations of a model and of all models in it, each once."""
    found = {id(part.config): part.config for part in owner.modules() if hasattr(part, "config")}
    waiting = list(found.values())
    while waiting:
        config = waiting.pop()
        for name in getattr(config, "sub_configs", ()):
            inner = getattr(config, name, None)
            if inner is not None and id(inner) not in found:
                found[id(inner)] = inner
                waiting.append(inner)
    return [config for config in found.values() if IMPLEMENTATION in vars(config)]
