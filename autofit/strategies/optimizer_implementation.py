"""Optimizer implementation: the same update in a for-loop, with foreach kernels, or in one fused kernel."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.torch_optimizers import MARKS, TORCH, grouped_parameters, has_own_step, placed_counter
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
SWITCHES = ("foreach", "fused")  # also the names of the device capabilities

Flags = Mapping[str, bool | None]


class OptimizerImplementation(Strategy):
    """The implementation of the update in torch's optimizers. The arithmetic stays the same up to rounding."""

    name = "optimizer_implementation"
    about = "updates the weights with foreach or fused kernels"
    cost = "memory for temporary copies with foreach"
    effect = "rounding"
    phase = Phase.OPTIMIZER
    owns = (KNOB,)
    fits_update_fn = True
    same_memory = True  # per sample: temporary memory of the update does not grow with the batch

    def offer(self, facts: Facts) -> Offer:
        """Returns the other implementations that this optimizer can run on this device.

        Each is tried with a temporary optimizer on parameters of one element.
        """
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        optimizers = each_of(facts.optimizer)
        reason = next((why for each in optimizers if (why := _unswitchable(each)) is not None), None)
        if reason is not None:
            return self.refuse(reason)
        in_use = [_ran(each, _flags_of(each.param_groups[0])) for each in optimizers]
        missing = {value: why for value in FLAGS if (why := _lack(value, facts, optimizers, in_use)) is not None}
        refused = tuple(
            Refusal(name=f"{KNOB}={value}", reason=why, origin="device" if _is_lacking(value, facts) else "")
            for value, why in missing.items()
        )
        if len(missing) == len(FLAGS):
            return Offer(refused=refused)
        values = ("default", *(value for value in FLAGS if value not in missing))
        about = "implementation of the optimizer's update"
        expected = () if facts.on_host else tuple(map(EXPECTED.__getitem__, values))
        usual = "fused" if "fused" in values and not facts.on_host else None
        knob = Knob(
            name=KNOB,
            values=values,
            default="default",
            about=about,
            expected=expected,
            same_memory=values,
            usual=usual,
        )
        return Offer((knob,), refused)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Switches the optimizer's flags, and moves its step counters to match, until the context is left."""
        value = plan.values.get(KNOB, "default")
        if value == "default":
            yield
            return
        if value not in FLAGS:
            raise unknown_value(KNOB, value, f"default, {', '.join(FLAGS)}")
        optimizers = () if draft.optimizer is None else each_of(draft.optimizer)
        reasons = (_unswitchable(each) or _unsupported(str(value), each, draft.model) for each in optimizers)
        reason = next((why for why in reasons if why is not None), None if optimizers else "inference has no updates")
        if reason is not None:
            raise SpaceError(
                f"{KNOB}={value} cannot be applied: {reason}; expected an optimizer of torch.optim that supports it. "
                "Tune again with this optimizer."
            )
        with Undo() as undo:
            for each in optimizers:
                undo.enter_context(_switched(each, str(value)))
            yield


def switches(plan: Plan) -> bool:
    """Returns whether `plan` selects an implementation of torch's own update."""
    return plan.values.get(KNOB, "default") != "default"


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
    if any(is_traceable_wrapper_subclass(parameter) for _, parameter in grouped_parameters(optimizer)):
        return "it holds sharded or quantized parameters"
    return None


def _lack(value: str, facts: Facts, optimizers: Sequence[Optimizer], in_use: Sequence[str]) -> str | None:
    """Returns why `value` is not offered, or None if it is."""
    if all(value == ran for ran in in_use):
        return "the default already runs this implementation here"
    if _is_lacking(value, facts):
        return f"this {facts.device_type} device has no {value} kernels"
    for optimizer in optimizers:
        unsupported = _unsupported(value, optimizer, facts.model)
        if unsupported is not None:
            return unsupported
        ran = _ran(optimizer, FLAGS[value])
        if ran != value:
            return f"a trial step ran as {ran}"
    return None


def _is_lacking(value: str, facts: Facts) -> bool:
    """Returns whether the device has no kernels for `value`."""
    return value in SWITCHES and value not in facts.capabilities


def _unsupported(value: str, optimizer: Optimizer, model: nn.Module) -> str | None:
    """Returns why this optimizer cannot run as `value`, as far as known without a trial step, or None."""
    if value != "fused":
        return None
    if "fused" not in optimizer.defaults:
        return f"{type(optimizer).__name__} has no fused implementation"
    if any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse for m in model.modules()):
        return "fused kernels do not support the sparse gradients of this model's embeddings"
    if not all(_is_even(parameter, optimizer) for _, parameter in grouped_parameters(optimizer)):
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


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records the names of the operations that run in its context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def _ran(optimizer: Optimizer, flags: Flags) -> str:
    """Returns which implementation a step with these flags runs, or the error with which it fails.

    The step is that of a temporary optimizer of the same torch class and hyperparameters, on one element of each device
    and dtype in each group.
    """
    seen = _Operations()
    try:
        trial = _temporary(optimizer, flags)
        with torch.no_grad(), seen:
            # Bypass the wrapper, which would call the user's global optimizer hooks.
            inspect.unwrap(type(trial).step)(trial)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    # A fused step uses list operations too, for its counters.
    if any("::_fused_" in name for name in seen.names):
        return "fused"
    return "foreach" if any("::_foreach_" in name for name in seen.names) else "for-loop"


def _temporary(optimizer: Optimizer, flags: Flags) -> Optimizer:
    groups = []
    for group in optimizer.param_groups:
        kinds = dict.fromkeys((parameter.device, parameter.dtype) for parameter in group["params"])
        tiny = [torch.ones(1, device=device, dtype=dtype, requires_grad=True) for device, dtype in kinds]
        for parameter in tiny:
            parameter.grad = torch.ones_like(parameter)
        same = {name: group[name] for name in optimizer.defaults if name in group and name not in SWITCHES}
        groups.append({**same, "params": tiny})
    kind: Any = next(cls for cls in type(optimizer).__mro__ if cls.__module__.startswith(TORCH))
    made: Optimizer = kind(groups, **{flag: flags[flag] for flag in SWITCHES if flag in optimizer.defaults})
    return made


def _flags_of(group: dict[str, Any]) -> Flags:
    return {flag: group.get(flag) for flag in SWITCHES}


@contextmanager
def _switched(optimizer: Optimizer, value: str) -> Iterator[None]:
    """Makes `optimizer` run as `value` until the context is left, as if it had been constructed that way."""
    previous, flags = _flags_of(optimizer.param_groups[0]), FLAGS[value]
    with Undo() as undo:
        undo.enter_context(_attributes(optimizer, fused=value == "fused"))
        undo.enter_context(_defaults(optimizer, flags))
        undo.callback(_set_groups, optimizer, previous)
        _set_groups(optimizer, flags)
        if bool(previous["fused"]) != bool(flags["fused"]):
            undo.enter_context(_step_counters(optimizer, now=bool(flags["fused"]), later=bool(previous["fused"])))
        yield


def _set_groups(optimizer: Optimizer, flags: Flags) -> None:
    """Sets the flags in every group, including groups that were added meanwhile."""
    for group in optimizer.param_groups:
        group.update({flag: value for flag, value in flags.items() if flag in group})


@contextmanager
def _defaults(optimizer: Optimizer, flags: Flags) -> Iterator[None]:
    """Sets the same flags in groups that are added before the context is left."""
    previous = {flag: optimizer.defaults[flag] for flag in SWITCHES if flag in optimizer.defaults}
    with Undo() as undo:
        undo.callback(optimizer.defaults.update, previous)
        optimizer.defaults.update({flag: flags[flag] for flag in previous})
        yield


@contextmanager
def _attributes(optimizer: Optimizer, *, fused: bool) -> Iterator[None]:
    """Sets the attributes by which `GradScaler` and the first fused step recognise the implementation."""
    previous = {name: vars(optimizer)[name] for name in MARKS if name in vars(optimizer)}
    with Undo() as undo:
        undo.callback(vars(optimizer).update, previous)
        for name in MARKS:
            undo.callback(vars(optimizer).pop, name, None)
        vars(optimizer).update(dict.fromkeys(MARKS, fused))
        yield


@contextmanager
def _step_counters(optimizer: Optimizer, *, now: bool, later: bool) -> Iterator[None]:
    """Keeps the step counters where a fused (`now`) or other optimizer expects them, until the context is left.

    Afterwards the previous tensor objects are restored, with the new values.
    """
    previous: dict[torch.Tensor, torch.Tensor] = {}
    with Undo() as undo:
        undo.callback(_put_back, optimizer, previous, later)
        for group, parameter in grouped_parameters(optimizer):
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                previous[parameter] = state["step"]
                state["step"] = placed_counter(state["step"], group, parameter, fused=now)
        yield


def _put_back(optimizer: Optimizer, previous: dict[torch.Tensor, torch.Tensor], fused: bool) -> None:
    """Moves the step counters to where a `fused` or other optimizer expects them."""
    for group, parameter in grouped_parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        if parameter in previous and "step" in state:
            state["step"] = previous[parameter].copy_(state["step"])
        elif isinstance(state.get("step"), torch.Tensor):
            state["step"] = placed_counter(state["step"], group, parameter, fused=fused)
