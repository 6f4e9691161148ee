"""Optimizer implementation: the same update in a for-loop, with foreach kernels, or in one fused kernel."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.layout import divides_parameters
from autofit.strategies.torch_optimizers import (
    MARKS,
    grouped_parameters,
    has_own_step,
    lacks_fused_parts,
    placed_counter,
    wrapped_parameters,
)
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft
from autofit.workloads.workload import each_of

KNOB = "optimizer_implementation"
FLAGS: dict[str, dict[str, bool | None]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
"""The optimizer's flags for each value. torch forbids both to be true; a single false flag already selects the loop."""
EXPECTED = {"default": 1.0, "for-loop": 0.98, "foreach": 1.0, "fused": 1.01}
"""Expected throughput on an accelerator, where the default is "foreach" and the update a small part of a step: in four
layers of GPT-2 on an H100 0.99 for the loop, whose small kernels take time to launch, and 1.01 for the fused kernel."""
SWITCHES = frozenset({"foreach", "fused"})  # also the names of the device capabilities

Flags = Mapping[str, bool | None]


class OptimizerImplementation(Strategy):
    """The implementation of the update in torch's optimizers. The arithmetic stays the same up to rounding."""

    name = "optimizer_implementation"
    about = "updates the weights with foreach or fused kernels"
    cost = "memory for temporary copies with foreach"
    effect = "rounding"
    phase = Phase.OPTIMIZER
    owns = {KNOB: "default"}
    fits_update_fn = True
    same_memory = True  # per sample: temporary memory of the update does not grow with the batch

    def offer(self, facts: Facts) -> Offer:
        """Returns the other implementations that this optimizer can run on this device."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        optimizers = each_of(facts.optimizer)
        if reason := next(filter(None, map(_unswitchable, optimizers)), None):
            return self.refuse(reason)
        missing = {value: why for value in FLAGS if (why := _lack(value, facts, optimizers)) is not None}
        lacking = SWITCHES - facts.capabilities
        refused = tuple(
            Refusal(name=f"{KNOB}={value}", reason=why, origin="device" if value in lacking else "")
            for value, why in missing.items()
        )
        if len(missing) == len(FLAGS):
            return Offer(refused=refused)
        values = ("default", *(value for value in FLAGS if value not in missing))
        knob = Knob(
            name=KNOB,
            values=values,
            default="default",
            about="implementation of the optimizer's update",
            expected=() if facts.on_host else tuple(map(EXPECTED.__getitem__, values)),
            same_memory=values,
            usual="fused" if "fused" in values and not facts.on_host else None,
        )
        lacking_parts = facts.ranks > 1 and any(map(lacks_fused_parts, optimizers))
        return Offer((knob,), refused, objection=_unfused if lacking_parts else None)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Switches the optimizer's flags, and moves its step counters to match, until the context is left."""
        if (value := plan.values[KNOB]) not in FLAGS:
            raise unknown_value(KNOB, value, f"default, {', '.join(FLAGS)}")
        optimizers = () if draft.optimizer is None else each_of(draft.optimizer)
        reasons = (_unswitchable(each) or _unsupported(str(value), each, draft.model) for each in optimizers)
        reason = next(filter(None, reasons), None if optimizers else "inference has no updates")
        if reason is not None:
            raise SpaceError(
                f"{KNOB}={value} cannot be applied: {reason}; expected an optimizer of torch.optim that supports it. "
                "Tune again with this optimizer."
            )
        with Undo() as undo:
            for each in optimizers:
                undo.enter_context(_switched(each, str(value)))
            yield


def _unfused(plan: Plan) -> str | None:
    """Returns why a plan cannot have a fused update where torch has none for sharded parameters, or None."""
    if plan.values.get(KNOB) != "fused" or (layout := divides_parameters(plan)) is None:
        return None
    return f"torch has no fused kernel of this optimizer for sharded parameters, as {layout} has"


def _unswitchable(optimizer: Optimizer) -> str | None:
    """Returns why the implementation of `optimizer` cannot be selected, or None."""
    name = type(optimizer).__name__
    if has_own_step(optimizer):
        return f"{name} has its own step, not one of torch.optim"
    if "foreach" not in optimizer.defaults:
        return f"{name} has only one implementation"
    if len({tuple(_flags_of(group).items()) for group in optimizer.param_groups}) != 1:
        return "its parameter groups differ in foreach or fused, so the user has already chosen"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "differentiable=True allows only the loop"
    return wrapped_parameters(optimizer)


def _lack(value: str, facts: Facts, optimizers: Sequence[Optimizer]) -> str | None:
    """Returns why `value` is not offered, or None if it is."""
    if all(value == _in_use(optimizer, facts) for optimizer in optimizers):
        return "the default already runs this implementation here"
    if value in SWITCHES - facts.capabilities:
        return f"this {facts.device_type} device has no {value} kernels"
    return next(filter(None, (_unsupported(value, optimizer, facts.model) for optimizer in optimizers)), None)


def _in_use(optimizer: Optimizer, facts: Facts) -> str:
    """Returns which implementation `optimizer` runs: by its flags, or else torch's default for the device."""
    flags = _flags_of(optimizer.param_groups[0])
    if flags["fused"] or flags["foreach"]:
        return "fused" if flags["fused"] else "foreach"
    undecided = flags["fused"] is None and flags["foreach"] is None
    return "foreach" if undecided and not facts.on_host and "foreach" in facts.capabilities else "for-loop"


def _unsupported(value: str, optimizer: Optimizer, model: nn.Module) -> str | None:
    """Returns why this optimizer cannot run as `value`, or None."""
    groups, parameters = optimizer.param_groups, [parameter for _, parameter in grouped_parameters(optimizer)]
    if value == "foreach" and any(isinstance(g.get("lr"), torch.Tensor) and not g.get("capturable") for g in groups):
        return "lr as a Tensor is not supported by foreach kernels without capturable=True"
    if value != "fused":
        return None
    if "fused" not in optimizer.defaults:
        return f"{type(optimizer).__name__} has no fused implementation"
    if isinstance(optimizer, torch.optim.Adagrad) and any(not parameter.is_cpu for parameter in parameters):
        return "Adagrad has fused kernels on the CPU only"
    if not all(parameter.is_floating_point() for parameter in parameters):
        return "fused kernels need real parameters"
    if any(isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in model.modules()):
        return "fused kernels do not support the sparse gradients of this model's embeddings"
    if not all(_is_even(parameter, optimizer) for parameter in parameters):
        return "fused kernels need dense parameters, gradients and optimizer state with equal strides"
    return None


def _is_even(parameter: torch.Tensor, optimizer: Optimizer) -> bool:
    """Returns whether gradient and state have the same memory layout as the parameter.

    The fused kernels on CPU read them by address; with other strides they silently compute wrong updates (torch 2.13).
    """
    strides = parameter.stride()
    related = [parameter.grad, *optimizer.state.get(parameter, {}).values()]
    same_shape = [t for t in related if isinstance(t, torch.Tensor) and t.shape == parameter.shape]
    dense = torch.empty_like(parameter, device="meta").stride() == strides
    return dense and all(tensor.stride() == strides for tensor in same_shape)


def _flags_of(group: dict[str, Any]) -> Flags:
    return {flag: group.get(flag) for flag in sorted(SWITCHES)}


@contextmanager
def _switched(optimizer: Optimizer, value: str) -> Iterator[None]:
    """Makes `optimizer` run as `value` until the context is left, as if it had been constructed that way."""
    previous, flags = _flags_of(optimizer.param_groups[0]), FLAGS[value]
    counters: dict[torch.Tensor, torch.Tensor] = {}
    with Undo() as undo:
        for name in MARKS:
            undo.replace(vars(optimizer), name, value == "fused")
        for flag in SWITCHES & optimizer.defaults.keys():  # for groups that are added meanwhile
            undo.replace(optimizer.defaults, flag, flags[flag])
        undo.callback(_set_groups, optimizer, previous)
        _set_groups(optimizer, flags)
        if bool(previous["fused"]) != bool(flags["fused"]):
            undo.callback(_put_back, optimizer, counters, bool(previous["fused"]))
            for group, parameter in grouped_parameters(optimizer):
                state = optimizer.state.get(parameter, {})
                if isinstance(counter := state.get("step"), torch.Tensor):
                    counters[parameter] = counter
                    state["step"] = placed_counter(counter, group, parameter, fused=bool(flags["fused"]))
        yield


def _set_groups(optimizer: Optimizer, flags: Flags) -> None:
    """Sets the flags in every group, including groups that were added meanwhile."""
    for group in optimizer.param_groups:
        group.update({flag: value for flag, value in flags.items() if flag in group})


def _put_back(optimizer: Optimizer, previous: dict[torch.Tensor, torch.Tensor], fused: bool) -> None:
    """Moves the step counters to where a `fused` or other optimizer expects them: into the previous tensors, if any."""
    for group, parameter in grouped_parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        if parameter in previous and "step" in state:
            state["step"] = previous[parameter].copy_(state["step"])
        elif isinstance(state.get("step"), torch.Tensor):
            state["step"] = placed_counter(state["step"], group, parameter, fused=fused)
