"""Optimizer in backward: updates each parameter as soon as its gradient is complete, and frees the gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.strategies.precision import scales_gradients
from autofit.strategies.torch_optimizers import grouped_parameters, has_own_step, watched_step, wrapped_parameters
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

KNOB = "optimizer_in_backward"
SMALLEST_SHARE = 0.05
"""Minimum memory that is freed, as a share of the memory budget. The next larger micro batch rarely needs less."""
SCALER = "a gradient scaler must see all gradients before the first update"
WHOLE = (torch.optim.LBFGS, torch.optim.SparseAdam)
"""Optimizers of torch whose update is not made parameter by parameter, or expects sparse gradients."""


class OptimizerInBackward(Strategy):
    """The update inside the backward pass, so that the gradients of all parameters never exist at once.

    The update has the same arithmetic, parameter by parameter, with the user's optimizer, its state and its groups.
    Autograd reports an error if another part of the backward pass still needs the old value of a parameter. A
    checkpointed block is recomputed before its own parameters are updated; only a block that also reads, without a
    gradient, parameters that belong to a later block would be recomputed with their new values.
    """

    name = "optimizer_in_backward"
    about = "updates each weight as soon as its gradient is complete, so that gradients never exist all at once"
    cost = "one update per parameter instead of one for many"
    effect = "exact"
    phase = Phase.OPTIMIZER
    owns = {KNOB: False}
    not_on_ranks = "gradients are exchanged between ranks after they are complete, and the update would come first"

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob if the optimizer updates by parameter and the gradients are large beside the budget."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        reason = _refusal(facts.optimizer, facts.model, facts.max_grad_norm) or _lack_of_effect(facts)
        if reason is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether each weight is updated, and its gradient freed, inside the backward pass",
            expected=(1.0, 0.95),
            growth=(1.0, 1.0),  # gradients do not grow with the batch
            one_pass=(True,),
        )
        return Offer((knob,))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Registers a hook on each parameter that updates it, until the context is left.

        Raises:
            SpaceError: the optimizer does not update by parameter, gradients are accumulated, clipped or scaled, or the
                user has hooks that expect the usual order.
        """
        optimizer = draft.optimizer
        reason = _refusal_of_draft(plan, draft)
        if optimizer is None or reason is not None:
            raise SpaceError(
                f"{KNOB}=True cannot be applied: {reason}; expected one micro batch per step, unclipped gradients and "
                "an optimizer of torch.optim. Tune again with this optimizer."
            )
        with Undo() as undo:
            undo.set(draft, "one_pass", True)
            for number, group in enumerate(optimizer.param_groups):
                update = _update(draft, optimizer, number)
                for parameter in group["params"]:
                    if parameter.requires_grad:  # one that is unfrozen later is updated after the backward pass
                        undo.callback(_unhook, parameter, parameter.register_post_accumulate_grad_hook(update))
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns why the update cannot be inside the backward pass of `plan`, or None."""
        if plan.values.get(KNOB) is not True:
            return None
        return SCALER if scales_gradients(plan) else None


def _update(draft: Draft, optimizer: Optimizer, group_number: int) -> Callable[[torch.Tensor], None]:
    """Returns a hook that updates one parameter and frees its gradient in a step. Other backward passes only add to it.

    It steps a view of the optimizer: an object of its class that shares its state, and whose only group holds the
    parameter with the present hyperparameters. The optimizer itself stays complete at all times, for other threads of
    the backward pass, for schedulers and for `state_dict`.
    """
    kind: Any = type(optimizer)

    def update(parameter: torch.Tensor) -> None:
        if draft.stepping:
            view = object.__new__(kind)
            group = {**optimizer.param_groups[group_number], "params": [parameter]}
            vars(view).update(vars(optimizer), param_groups=[group])
            kind.step(view)  # a scheduler replaces `step` on the instance by that of the whole optimizer
            parameter.grad = None

    return update


def _unhook(parameter: Any, handle: Any) -> None:
    handle.remove()
    if not parameter._post_accumulate_grad_hooks:
        parameter._post_accumulate_grad_hooks = None  # as before the first hook, not an empty dictionary


def _refusal_of_draft(plan: Plan, draft: Draft) -> str | None:
    """Returns why the update of a draft cannot be inside the backward pass of `plan`, or None."""
    if draft.optimizer is None:
        return "inference has no updates"
    if plan.accumulation_steps > 1:
        return f"the gradients of {plan.accumulation_steps} micro batches are accumulated before the update"
    if draft.scaler is not None:
        return SCALER
    return _refusal(draft.optimizer, draft.model, draft.max_grad_norm)


def _refusal(optimizer: Optimizer, model: nn.Module, max_grad_norm: float | None) -> str | None:
    """Returns why this training cannot update inside the backward pass, or None."""
    name, parameters = type(optimizer).__name__, [parameter for _, parameter in grouped_parameters(optimizer)]
    if max_grad_norm is not None:
        return "clipping needs the norm of all gradients before the first update"
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        return "DistributedDataParallel averages gradients after they are accumulated"
    if has_own_step(optimizer):
        return f"{name} has its own step, not one of torch.optim, and may need all gradients at once"
    if isinstance(optimizer, WHOLE):
        return f"{name} does not update one parameter at a time"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "differentiable=True keeps the graph of the update"
    if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters):
        return "a parameter already has a hook that runs when its gradient is complete"
    return watched_step(optimizer) or wrapped_parameters(optimizer)


def _lack_of_effect(facts: Facts) -> str | None:
    """Returns why freeing the gradients early cannot matter, or None."""
    assert facts.optimizer is not None, "inference is refused before"
    if facts.global_batch_size not in (None, facts.micro_batch_size) and not facts.resizable:
        return f"each step accumulates the gradients of {facts.accumulation_steps} micro batches"
    sizes = [parameter.nbytes for _, parameter in grouped_parameters(facts.optimizer) if parameter.requires_grad]
    freed, budget = sum(sizes) - max(sizes, default=0), facts.memory_budget_bytes  # one gradient exists at a time
    if budget is not None and freed < SMALLEST_SHARE * budget:
        return (
            f"the gradients without the largest one are {format_bytes(freed)}, less than {SMALLEST_SHARE:.0%} of the "
            f"memory budget of {format_bytes(budget)}: freeing them early hardly changes what fits"
        )
    return None
