"""Optimizer states: the moments of Adam in 8 bits, by torchao."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.units import format_bytes
from autofit.core.wording import install_command
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.compilation import missing_tool
from autofit.strategies.optimizer_implementation import switches
from autofit.strategies.optimizer_in_backward import updates_in_backward
from autofit.strategies.torch_optimizers import (
    MARKS,
    grouped_parameters,
    has_own_step,
    has_sparse_gradients,
    is_scheduled,
    placed_counter,
    watched_step,
    wrapped_parameters,
)
from autofit.strategies.undo import Undo
from autofit.torch_internals import is_traceable_wrapper_subclass
from autofit.workloads.step import Draft

KNOB = "optimizer_states"
SMALLEST, BLOCK = 4096, 256
"""Elements of the smallest parameter whose states are quantized, and elements that share a scale, in torchao."""
SMALLEST_SHARE = 0.05
"""Minimum memory that is freed, as a share of the memory budget. The next larger micro batch rarely needs less."""
FREED_BYTES = 6
"""Bytes that each element of a parameter needs less: two moments of one byte instead of four."""
LEAST_WARM_UP_S = 3.0
"""Least plausible seconds in which the update is compiled; see `autofit.strategies.compilation`."""

EIGHT_BITS, PACKAGE = "torchao-8bit", "torchao"
"""The value of the knob beside "default", and the package whose optimizer makes the updates, also the name of its
extra."""

State = dict[str, Any]
"""What an optimizer keeps for one parameter."""


class OptimizerStates(Strategy):
    """The moments of Adam or AdamW in 8 bits, in blocks that share a scale (Dettmers et al., arXiv:2110.02861).

    torchao makes the updates, with the groups and the states of the user's optimizer, which stays the object in use. It
    has one compiled kernel for each shape of a parameter. Moments that exist already are quantized in the first step,
    and those of small parameters stay float32. While the step is open, `state_dict` of the user's optimizer holds
    torchao's states. After the step is closed, it holds float32 moments of torch, which need eight bytes for each
    element of a parameter.
    """

    name = "optimizer_states"
    about = "keeps the moments of Adam in 8 bits"
    cost = "digits of the moments, a slower update, and seconds of compiling"
    effect = "changes the result"
    phase = Phase.OPTIMIZER
    owns = (KNOB,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if torchao can make the updates of this optimizer on this device."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        if facts.numerics != "any":
            return self.refuse(
                f"numerics={facts.numerics!r} keeps the optimizer's states; numerics='any' allows 8-bit states"
            )
        if (reason := _unusual(facts.optimizer, facts.model)) is not None:
            return self.refuse(reason)
        if (reason := _lack(facts, facts.optimizer)) is not None:
            return Offer(refused=(Refusal(name=f"{KNOB}={EIGHT_BITS}", reason=reason),))
        knob = Knob(
            name=KNOB,
            values=("default", EIGHT_BITS),
            default="default",
            about="how the moments of the optimizer are kept",
            expected=(1.0, 0.95),
            growth=(1.0, 1.0),  # states do not grow with the batch
            warm_up_s=(0.0, LEAST_WARM_UP_S),
            frees_bytes=(0, _freed_bytes(facts.optimizer)),
        )
        return Offer((knob,))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Has torchao make the updates, until the context is left.

        Raises:
            SpaceError: torchao is missing, or cannot make the updates of this optimizer.
        """
        value = plan.values.get(KNOB, "default")
        if value == "default":
            yield
            return
        if value != EIGHT_BITS:
            raise unknown_value(KNOB, value, f"default or {EIGHT_BITS}")
        optimizer, reason = draft.optimizer, "inference has no updates"
        if optimizer is not None:
            reason = _unusual(optimizer, draft.model) or _unusable(optimizer, draft.device.type, None) or ""
        if optimizer is None or reason:
            raise SpaceError(
                f"{KNOB}={value} cannot be applied: {reason}; expected an Adam or AdamW of torch.optim, and "
                "torchao. Tune again with this optimizer."
            )
        with Undo() as undo:
            undo.set(draft, "compiled", True)
            for name in MARKS:  # a fused step would divide by the scale of a gradient scaler itself
                undo.replace(vars(optimizer), name, False)
            before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
            undo.callback(_unpack, optimizer, before)
            autocast = draft.autocast

            def packing() -> AbstractContextManager[Any]:
                if draft.stepping:  # without a step, the moments keep all digits
                    _pack(optimizer, before)
                return autocast()

            undo.set(draft, "autocast", packing)
            undo.replace(vars(optimizer), "step", MethodType(_step(is_scheduled(optimizer)), optimizer))
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns which other way to update `plan` has beside that of torchao, or None."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        if switches(plan):
            return "the update is either one of torch.optim's implementations or that of torchao for 8-bit states"
        return "torchao updates 8-bit states after the backward pass" if updates_in_backward(plan) else None

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that torchao makes the updates, if the plan has 8-bit states."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        return "the update of 8-bit states has kernels of its own; a probe measures their memory"


def _unusual(optimizer: Optimizer, model: nn.Module) -> str | None:
    """Returns why torchao cannot update the parameters of `optimizer`, or None."""
    if not isinstance(optimizer, Adam) or has_own_step(optimizer):
        return f"found {type(optimizer).__name__}; torchao replaces only Adam and AdamW of torch.optim"
    for option in ("amsgrad", "maximize", "capturable", "differentiable"):
        if any(group.get(option) for group in optimizer.param_groups):
            return f"torchao has no {option}"
    if any(isinstance(beta, torch.Tensor) for group in optimizer.param_groups for beta in group["betas"]):
        return "torchao expects betas that are numbers"
    if has_sparse_gradients(model):
        return "torchao does not support the sparse gradients of this model's embeddings"
    return watched_step(optimizer) or wrapped_parameters(optimizer) or _unusual_parameters(optimizer)


def _unusual_parameters(optimizer: Optimizer) -> str | None:
    parameters = [parameter for _, parameter in grouped_parameters(optimizer)]
    if odd := {parameter.dtype for parameter in parameters} - {torch.float32, torch.bfloat16}:
        return f"it holds a parameter of {odd.pop()}; torchao expects float32 or bfloat16"
    if not all(parameter.is_contiguous() for parameter in parameters):
        return "it holds a parameter that is not contiguous, such as one in channels_last"
    return None


def _unusable(optimizer: Optimizer, device_type: str, capabilities: frozenset[str] | None) -> str | None:
    """Returns why torchao cannot make the updates on a device, or None. Capabilities that are None are not checked."""
    if any("max_momentum" in group or "max_betas" in group for group in optimizer.param_groups):
        return "a scheduler changes beta1 in every step, and torchao compiles its update anew for each value"
    if importlib.util.find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed: {install_command(PACKAGE)}"
    try:
        _torchao()
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        return f"{PACKAGE} cannot be imported ({error}): {install_command(PACKAGE)}"
    if capabilities is not None and "compiled code" not in capabilities:
        return f"torchao compiles its update, and torch.compile generates no code for this {device_type} device"
    return missing_tool()


def _lack(facts: Facts, optimizer: Optimizer) -> str | None:
    """Returns why 8-bit states are not offered, or None."""
    reason = _unusable(optimizer, facts.device_type, facts.capabilities)
    freed, budget = _freed_bytes(optimizer), facts.memory_budget_bytes
    if reason is not None:
        return reason
    if not freed:
        return f"{PACKAGE} quantizes no states here: it leaves those of small parameters in float32"
    if budget is not None and freed < SMALLEST_SHARE * budget:
        return (
            f"8-bit states free {format_bytes(freed)}, less than {SMALLEST_SHARE:.0%} of the memory budget of "
            f"{format_bytes(budget)}: they hardly change what fits"
        )
    return None


def quantizes(parameter: torch.Tensor) -> bool:
    """Returns whether the moments of a parameter are kept in 8 bits."""
    return parameter.numel() >= SMALLEST and parameter.numel() % BLOCK == 0


def _freed_bytes(optimizer: Optimizer) -> int:
    """Returns the bytes that 8-bit states need less than float32 states."""
    return FREED_BYTES * sum(p.numel() for _, p in grouped_parameters(optimizer) if p.requires_grad and quantizes(p))


@cache
def _torchao() -> Any:
    """Returns the module of torchao's optimizers, imported without its notes on kernels for other devices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return import_module(f"{PACKAGE}.optim")
    finally:
        logging.disable(before)


def _step(scheduled: bool) -> Callable[..., Any]:
    """Returns the function that is the step of an optimizer whose updates torchao makes."""
    made = _torchao().AdamW8bit([torch.zeros(1)], bf16_stochastic_round=True)

    def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _pack(optimizer, {})  # what was loaded since the last step
        for group in optimizer.param_groups:
            made.is_adamw = bool(group["decoupled_weight_decay"])
            made.state = optimizer.state
            made.param_groups = [{**group, "lr": torch.as_tensor(group["lr"])}]  # a number would be compiled
            with warnings.catch_warnings():
                # torchao's states have no hash for the cache of torch.compile (torch 2.13, torchao 0.18).
                warnings.filterwarnings("ignore", message=".*_stable_hash_for_caching")
                warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 warns of its own imports
                made.step()
        if scheduled:
            optimizer._opt_called = True  # a scheduler asks whether a step came before its own
        return loss

    if scheduled:
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # by this a scheduler knows a step that it counts
    return step


def _pack(optimizer: Optimizer, before: Mapping[torch.Tensor, State]) -> None:
    """Gives each state torchao's form, parameter by parameter, and empties the tensors of `before`."""
    for _, parameter in grouped_parameters(optimizer):
        state = optimizer.state.get(parameter)
        if not state or _is_packed(state, parameter):
            continue
        from torchao.optim.subclass_8bit import OptimState8bit  # noqa: PLC0415  # only if it is used

        packed = {
            name: OptimState8bit.zeros(parameter.shape, name == "exp_avg", BLOCK, parameter.device).copy_(
                state[name].float()
            )
            for name in ("exp_avg", "exp_avg_sq")
        }
        state.update(packed)
        kept = {id(value) for value in state.values()}
        for value in before.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and id(value) not in kept:
                value.data = torch.empty(0, dtype=value.dtype, device=value.device)


def _is_packed(state: State, parameter: torch.Tensor) -> bool:
    return not quantizes(parameter) or is_traceable_wrapper_subclass(state["exp_avg"])


def _unpack(optimizer: Optimizer, before: Mapping[torch.Tensor, State]) -> None:
    """Gives each state torch's form, parameter by parameter, in the tensors of `before` where there are such."""
    for group, parameter in grouped_parameters(optimizer):
        state = optimizer.state.get(parameter)
        if not state or not _is_packed(state, parameter):
            continue
        for name, kept in state.items():
            packed: Any = kept if is_traceable_wrapper_subclass(kept) else None
            value = kept if packed is None else packed.dequantize()
            if name == "step":
                value = placed_counter(value, group, parameter, fused=bool(group.get("fused")))
            earlier = before.get(parameter, {}).get(name)
            if isinstance(earlier, torch.Tensor) and earlier is not value:
                earlier.data = value.data
                value = earlier
            state[name] = value
