"""A model that its user has already divided among ranks: by what, and how the model inside a wrapper is tuned.

The wrapper of a replicated model has hooks on its parameters, which note each backward pass, and may begin to exchange
gradients. So the model is tuned with other parameters on the same memory, of which the wrapper knows nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NoReturn

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autofit.core.errors import UsageError
from autofit.core.uninterrupted import uninterrupted
from autofit.workloads.workload import Workload

_SHARDS = (
    ", on a process group of your own, where a rank that fails would leave the others waiting; pass the model before "
    "it is sharded: layout=full shards it too"
)
WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("DistributedDataParallel", "DataParallel"), "; pass the model without it"),
    **dict.fromkeys(("FullyShardedDataParallel", "FSDPModule"), _SHARDS),
}
"""Classes, also as bases, that divide a model among ranks, with what to do. By name, since not all are loaded."""
INSIDE = (
    "the model inside your DistributedDataParallel was tuned: its settings, its communication hooks and the hooks on "
    "parameters were not a part of what was measured"
)


def divided_already(model: nn.Module) -> str | None:
    """Returns by what a model is already divided among ranks, and what to do; None if it is not."""
    for name, module in model.named_modules():
        wrapper = next((each.__name__ for each in type(module).__mro__ if each.__name__ in WRAPPERS), None)
        if wrapper is not None:
            where = f"the module {name!r}" if name else "the model"
            return f"{where} is already divided among ranks by {wrapper}{WRAPPERS[wrapper]}"
    return None


def inside(model: nn.Module) -> nn.Module:
    """Returns the model inside a `DistributedDataParallel`, unless that also changes its precision; else the model."""
    if type(model) is not DistributedDataParallel or model.mixed_precision is not None:
        return model
    found: nn.Module = model.module
    return found


@contextmanager
def unwrapped(workload: Workload) -> Iterator[Workload]:
    """Yields the workload of the model inside a `DistributedDataParallel`, until the context is left; else the same.

    Meanwhile the model and the optimizer have other parameters, with the memory and the gradients of the user's, so
    that no pass reaches the wrapper; and the wrapper refuses passes of its own, which would wait for the other ranks.
    """
    wrapper, model = workload.model, inside(workload.model)
    if model is wrapper:
        yield workload
        return
    known = {parameter: _twin(parameter) for parameter in model.parameters()}
    given = workload.optimizer
    each = given.values() if isinstance(given, Mapping) else (given,)
    optimizers = [optimizer for optimizer in each if isinstance(optimizer, Optimizer)]
    with ExitStack() as undo:
        with uninterrupted():
            _exchange(model, optimizers, known)
            undo.callback(_exchange, model, optimizers, {twin: parameter for parameter, twin in known.items()})
        undo.callback(vars(wrapper).pop, "forward")
        vars(wrapper)["forward"] = _refused
        yield replace(workload, model=model)


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """Returns a parameter with the memory of another."""
    found = nn.Parameter(parameter.detach(), parameter.requires_grad)
    vars(found).update(vars(parameter))
    return found


@uninterrupted()
def _exchange(model: nn.Module, optimizers: list[Optimizer], others: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Replaces the parameters of a model and its optimizers by others, which get their gradients and states."""
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
            setattr(module, name, others[parameter])
    for parameter, other in others.items():
        other.grad, parameter.grad = parameter.grad, None
    changed: dict[torch.Tensor, nn.Parameter] = dict(others.items())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [changed.get(parameter, parameter) for parameter in group["params"]]
        state = {changed.get(parameter, parameter): kept for parameter, kept in optimizer.state.items()}
        optimizer.state.clear()
        optimizer.state.update(state)


def _refused(*inputs: object, **named: object) -> NoReturn:
    raise UsageError(
        "the step calls the DistributedDataParallel that was given to autofit; expected it to call the model that it "
        "gets as an argument, of which autofit brings the ranks together itself. Use that argument."
    )
