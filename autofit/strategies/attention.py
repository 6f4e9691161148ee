"""Attention: the fused kernels of torch for a transformers model that computes attention by plain products."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from autofit.core.errors import Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import has_compiled_part, outermost
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

KNOB = "attention"
VALUES = ("default", "sdpa")
IMPLEMENTATION = "_attn_implementation_internal"
"""Attribute of a transformers configuration that its models read at each call."""
NEEDS_WEIGHTS = "output_attentions=True needs the attention weights, which only the eager implementation returns"


class Attention(Strategy):
    """The attention of a transformers model that computes it by plain products ("eager").

    "sdpa": the model calls `scaled_dot_product_attention` instead.
    """

    name = "attention"
    about = "runs attention by another implementation"
    cost = "nothing, but random numbers of dropout are drawn in another way"
    effect = "rounding"
    phase = Phase.MODULES
    owns = {KNOB: "default"}
    gated = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `attention` if a model computes attention by plain products and can be switched."""
        if reason := _lack(facts.model, facts.batch) or _seen(facts):
            return self.refuse(reason)
        return Offer((Knob(name=KNOB, values=VALUES, default="default", about="implementation of attention"),))

    def apply(self, plan: Plan, draft: Draft) -> AbstractContextManager[None]:
        """Switches the models' implementation.

        Raises:
            SpaceError: the value is unknown, or no transformers model here can be switched.
        """
        if (value := plan.values[KNOB]) not in VALUES:
            raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)}")
        if reason := _lack(draft.model, None):
            raise unknown_value(KNOB, value, f"default, since {reason}")
        return _switched(draft.model)


def _is_owner(module: nn.Module) -> bool:
    """Returns whether a module is a transformers model."""
    return callable(getattr(module, "set_attn_implementation", None)) and hasattr(module, "config")


def _is_eager(owner: Any) -> bool:
    return getattr(owner.config, "_attn_implementation", None) == "eager"


def _lack(model: nn.Module, batch: Any) -> str | None:
    """Returns why no transformers model in `model` can be switched to `scaled_dot_product_attention`, or None."""
    eager = list(filter(_is_eager, outermost(model, _is_owner)))
    if not eager:
        return "no transformers model here computes attention by plain products (attn_implementation='eager')"
    return next(filter(None, (_lack_of(owner, batch) for owner in eager)), None)


def _lack_of(owner: Any, batch: Any) -> str | None:
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


def _seen(facts: Facts) -> str | None:
    """Returns why one step of the user would not run another attention, or None."""
    if facts.rehearse is None:
        return "the user's step could not be inspected"
    watching = _AttentionCalls()

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        for owner in outermost(model, _is_owner):  # of a copied model, which is discarded
            owner.register_forward_pre_hook(watching.asked, with_kwargs=True)
        with _switched(model), watching:
            yield

    failed = ""
    try:
        facts.rehearse(watch)
    except Untraceable as error:
        failed = f"the user's step cannot be run without data: {error.reason} ({error.where})"
    if watching.wants_weights or failed:
        return NEEDS_WEIGHTS if watching.wants_weights else failed
    return None if watching.called else "the user's step does not call scaled_dot_product_attention"


class _AttentionCalls(TorchFunctionMode):
    """Notes whether `scaled_dot_product_attention` is called, and whether the weights of attention are asked for."""

    called = wants_weights = False

    def asked(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.wants_weights |= kwargs.get("output_attentions") is True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes a call and runs it."""
        self.called |= func is functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@contextmanager
def _switched(model: nn.Module) -> Iterator[None]:
    """Switches the transformers models in `model` from plain products to `scaled_dot_product_attention`."""
    with Undo() as undo:
        for owner in outermost(model, _is_owner):
            for config in _configurations(owner):
                undo.callback(vars(config).update, {IMPLEMENTATION: vars(config)[IMPLEMENTATION]})
            if _is_eager(owner):
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
