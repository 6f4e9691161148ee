"""bfloat16 parameters: the weights that bf16 autocast would cast, kept in bfloat16, with stochastic rounding.

The update rounds stochastically, so that changes that are too small for bfloat16 are kept on average. A weight takes 2
bytes, its gradient 2, and its moments 8 in float32 or 2 in 8 bits; otherwise it takes 16 bytes in all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.strategies.base import Facts, Offer, Phase, Strategy, is_on
from autofit.strategies.low_bit_adam import cleared_by_a_step, refusal, updated_by
from autofit.strategies.precision import computes_in_bf16
from autofit.strategies.torch_optimizers import grouped_parameters, is_taken_over
from autofit.strategies.torchao_adam import TorchaoAdam
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Modules whose weight autocast casts."""
ROUNDING = TorchaoAdam(low_bit=False)
KNOB = "bf16_parameters"
REPLACED = "_autofit_replaced_forward"
"""Entry of a module that has the forward of its own that it had before."""
SMALLEST_SHARE = 0.05
"""Minimum memory that is freed, as a share of the memory budget. The next larger micro batch rarely needs less."""
LEAST_WARM_UP_S = 3.0
"""Least plausible seconds in which the update is compiled; see `autofit.strategies.compilation`."""

Parts = list[tuple[nn.Module, nn.Parameter]]


class Bf16Parameters(Strategy):
    """Weights of linear layers and convolutions in bfloat16, under bf16 autocast.

    Forward and backward compute what they compute under autocast alone, which rounds these weights in the same way, so
    that the gate of the precision is also that of this strategy. Parameters with one dimension, and those that other
    modules share, stay float32. While the step is open, the model's `state_dict` holds bfloat16 weights.
    """

    name = KNOB
    about = "keeps the weights of linear layers and convolutions in bfloat16, and rounds their updates stochastically"
    cost = "digits of the weights, a slower update, and seconds of compiling with torchao"
    effect = "changes the result"
    phase = Phase.OPTIMIZER
    owns = (KNOB,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if bf16 is at hand, torchao is installed and can make the updates, and weights matter."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        reason, origin = self._refusal(facts, facts.optimizer)
        if reason is not None:
            return self.refuse(reason, origin)
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether the weights that autocast casts are kept in bfloat16",
            expected=(1.0, 0.95),
            growth=(1.0, 1.0),  # weights do not grow with the batch
            warm_up_s=(0.0, LEAST_WARM_UP_S),
            frees_bytes=(0, _freed_bytes(facts.optimizer, facts.model)),
        )
        return Offer((knob,))

    def _refusal(self, facts: Facts, optimizer: Optimizer) -> tuple[str | None, Literal["", "device"]]:
        """Returns why the knob is not offered, or None, and whether the device is the reason."""
        if facts.numerics != "any":
            return f"numerics={facts.numerics!r} keeps the weights in float32; numerics='any' allows bfloat16", ""
        if "bf16" not in facts.capabilities:
            return f"this {facts.device_type} device does not compute in bf16", "device"
        reason = _lack(optimizer, facts.model, facts.device_type, facts.capabilities)
        return reason or _lack_of_effect(optimizer, facts.model, facts.memory_budget_bytes), ""

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Keeps the weights in bfloat16 until the context is left.

        Raises:
            SpaceError: torchao is missing or cannot make the updates of this optimizer.
        """
        if not is_on(plan, KNOB):
            yield
            return
        optimizer = draft.optimizer
        reason = "inference has no updates"
        if optimizer is not None:
            reason = _lack(optimizer, draft.model, draft.device.type, None) or ""
        if optimizer is None or reason:
            raise SpaceError(
                f"{KNOB}=True cannot be applied: {reason}; expected an Adam or AdamW of torch.optim, and "
                "torchao. Tune again with this optimizer."
            )
        with Undo() as undo:
            undo.enter_context(_narrowed(draft, optimizer))
            undo.callback(setattr, draft, "compiled", draft.compiled)
            draft.compiled = True
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns that the weights are cast anyway only under bf16 autocast, if the plan has another precision."""
        if plan.values.get(KNOB) is True and not computes_in_bf16(plan):
            return "weights in bfloat16 need bf16 autocast, which computes with them as if they were cast"
        return None

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that a library makes the updates, if the plan keeps weights in bfloat16."""
        if not rounds_weights(plan):
            return None
        return "the update with stochastic rounding has kernels of its own; a probe measures their memory"


def rounds_weights(plan: Plan) -> bool:
    """Returns whether `plan` keeps weights in bfloat16, which a library updates after the backward pass."""
    return plan.values.get(KNOB) is True


def _lack(optimizer: Optimizer, model: nn.Module, device_type: str, capabilities: frozenset[str] | None) -> str | None:
    """Returns why weights cannot be kept in bfloat16, or None."""
    reason = refusal(optimizer, model) or ROUNDING.refusal(optimizer) or ROUNDING.lack(device_type, capabilities)
    return reason or (None if _weights(optimizer, model) else "no linear layer or convolution has a weight of its own")


def _freed_bytes(optimizer: Optimizer, model: nn.Module) -> int:
    """Returns the bytes that weights in bfloat16 need less: half of each weight and of its gradient."""
    return sum(weight.nbytes for _, weight in _weights(optimizer, model))


def _lack_of_effect(optimizer: Optimizer, model: nn.Module, budget: int | None) -> str | None:
    """Returns why smaller weights cannot matter, or None."""
    freed = _freed_bytes(optimizer, model)
    if budget is None or freed >= SMALLEST_SHARE * budget:
        return None
    return (
        f"weights in bfloat16 free {format_bytes(freed)}, less than {SMALLEST_SHARE:.0%} of the memory budget of "
        f"{format_bytes(budget)}: they hardly change what fits"
    )


@contextmanager
def _narrowed(draft: Draft, optimizer: Optimizer) -> Iterator[None]:
    """Keeps the weights in bfloat16, rounded stochastically in each update, until the context is left.

    Afterwards they are float32 with the trained values. Until the first step, the float32 values are kept in main
    memory, so that nothing is lost without one. Outside a step, the layers compute as under autocast and return their
    input's type.
    """
    parts = _weights(optimizer, draft.model)
    exact: dict[torch.Tensor, torch.Tensor] = {}
    with Undo() as undo:
        undo.callback(_widen, parts, exact)
        for module, weight in parts:
            exact[weight] = weight.data.cpu()
            _convert(weight, weight.data.to(torch.bfloat16))
            _replace_forward(undo, module)
        undo.enter_context(cleared_by_a_step(exact, draft))
        if not is_taken_over(optimizer):  # an update of 8-bit states rounds too
            undo.enter_context(updated_by(ROUNDING, optimizer, draft))
        yield


def _weights(optimizer: Optimizer, model: nn.Module) -> Parts:
    """Returns the modules whose weight is trained by `optimizer` and belongs to no other module, with that weight."""
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, []).append(module)
    trained = {parameter for _, parameter in grouped_parameters(optimizer)}
    return [
        (modules[0], weight)
        for weight, modules in owners.items()
        if len(modules) == 1
        and type(modules[0]) in CAST
        and modules[0].weight is weight
        and weight in trained
        and weight.requires_grad
        and weight.dtype == torch.float32
    ]


def _replace_forward(undo: Undo, module: nn.Module) -> None:
    """Has a module compute with its weight in bfloat16.

    The function is the same for all modules, so that torch.compile compiles it once.
    """
    entries = vars(module)
    if "forward" in entries:
        undo.replace(entries, REPLACED, entries["forward"])
    undo.replace(entries, "forward", MethodType(_forward, module))


def _forward(module: nn.Module, inputs: torch.Tensor, *others: Any, **named: Any) -> Any:
    """Runs a module whose weight is in bfloat16."""
    if torch.is_autocast_enabled(inputs.device.type):
        return _computed(module, inputs, *others, **named)
    with torch.autocast(inputs.device.type, torch.bfloat16):
        return _computed(module, inputs, *others, **named).to(inputs.dtype)


def _computed(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    """Returns the output of the forward that was replaced."""
    if REPLACED in vars(module):
        return vars(module)[REPLACED](*inputs, **named)
    return type(module).forward(module, *inputs, **named)


def _widen(parts: Parts, exact: dict[torch.Tensor, torch.Tensor]) -> None:
    """Makes the weights float32 again, one after another."""
    for _, weight in parts:
        if weight.dtype == torch.bfloat16:
            _convert(weight, exact[weight].to(weight.device) if weight in exact else weight.data.float())


def _convert(weight: nn.Parameter, data: torch.Tensor) -> None:
    gradient, weight.grad = weight.grad, None
    weight.data = data
    if gradient is not None:
        weight.grad = gradient.to(data.dtype)
