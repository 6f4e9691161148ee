"""Memory that a training step keeps at any batch size, found without a step, for steps that cannot be traced.

Self-contained: checks whether the user's functions hold an object in which a trace could leave a fake tensor.
"""

import dis
import enum
import gc
import logging
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from autofit.core.errors import Untraceable
from autofit.memory.breakdown import Part
from autofit.memory.trace import Kind
from autofit.torch_internals import FakeTensor, storage_id
from autofit.tracing.fake_copy import fake_mode, fake_workload
from autofit.workloads.loss import LossRule
from autofit.workloads.tree import live_tensors
from autofit.workloads.workload import Workload, each_of, state_tensors


def find_fixed_parts(workload: Workload) -> tuple[Part, ...]:
    """Returns parameters, buffers, gradients and optimizer state with their bytes.

    The optimizer state is that after one update of a fake copy. It is left out if the copy cannot be updated.
    """
    model = workload.model
    found = [(Kind.PARAMETER, _bytes(model.parameters())), (Kind.BUFFER, _bytes(model.buffers()))]
    if workload.training:
        found.append((Kind.GRADIENT, _bytes(p for p in model.parameters() if p.requires_grad)))
        with suppress(Exception):  # a custom optimizer may need more than gradients
            found.append((Kind.OPTIMIZER_STATE, _bytes(_updated(workload))))
    return tuple(Part(name=kind.value, size_bytes=size) for kind, size in found if size)


def _updated(workload: Workload) -> Iterator[torch.Tensor]:
    """Yields the optimizer's state tensors after an update of a fake copy of the model."""
    unknown = LossRule("", lambda model, batch: torch.empty(()), inferred=False, about="")
    with fake_mode():
        copied = fake_workload(workload, unknown, (), torch.device("cpu")).workload
        optimizer = copied.make_optimizer()
        for parameter in copied.model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        if optimizer is not None:
            for each in each_of(optimizer):
                each.step()
            yield from state_tensors(optimizer)


def _bytes(tensors: Iterable[torch.Tensor | nn.Parameter]) -> int:
    """Returns the total bytes of the distinct storages."""
    storages = {storage_id(storage): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())


SAFE_GLOBALS = (
    types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, str, int, float, bool, tuple, frozenset,
    type(None), torch.dtype, torch.device, torch.Size, bytes, complex, range, slice, enum.Enum, re.Pattern,
    logging.Logger, logging.LoggerAdapter,
)  # fmt: skip
"""Types of globals that a function may use, since nothing can be kept in them."""
MOST_ENTRIES = 10_000
"""Maximum number of entries of a container that is copied before a trace."""
TRUSTED = ("torch", "autofit", "transformers")
"""Packages whose functions and modules do not keep their arguments."""


def check_self_contained(workload: Workload) -> list[Any]:
    """Checks that the workload's functions hold nothing that a trace could change and that cannot be restored.

    Returns:
        The lists, dicts and sets of plain values, such as tables of names, that the functions use as globals.

    Raises:
        Untraceable: a function holds such an object; the error names both.
    """
    containers: dict[int, Any] = {}
    for what, function in _functions(workload):
        if (held := _held(function, containers)) is not None:
            raise Untraceable(f"{what} holds {held}, in which a trace could leave a fake tensor", f"in {what}")
    return list(containers.values())


def fake_tensors() -> list[FakeTensor]:
    """Returns the fake tensors that are alive. torch.compile keeps some of its own."""
    return [each for each in live_tensors() if isinstance(each, FakeTensor)]


def check_nothing_left(existing: Sequence[FakeTensor] = ()) -> None:
    """Checks that no fake tensor is left after a trace but the `existing` ones, which were alive before.

    Raises:
        Untraceable: a fake tensor is left.
    """
    known = {id(each) for each in existing}
    if all(id(each) in known for each in fake_tensors()):
        return
    gc.collect()
    left = [each for each in fake_tensors() if id(each) not in known]
    if left:
        raise Untraceable(f"{len(left)} fake tensors are kept by something outside the model", "after the trace")


def _functions(workload: Workload) -> Iterator[tuple[str, Any]]:
    """Yields the functions of the user's code that a step runs, each with a description."""
    for name in ("step_fn", "update_fn"):
        if (function := getattr(workload, name)) is not None:
            yield name, function
    if workload.loss_fn is not None and not isinstance(workload.loss_fn, nn.Module):
        yield "loss_fn", workload.loss_fn
    seen: set[type] = set()
    roots = [workload.model, *([workload.loss_fn] if isinstance(workload.loss_fn, nn.Module) else [])]
    for module in (module for root in roots for module in root.modules()):
        for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks):
            yield from (("a hook of the model", hook) for hook in hooks.values())
        if type(module) not in seen:
            seen.add(type(module))
            yield f"{type(module).__name__}.forward", type(module).forward
        if "forward" in vars(module):
            yield "a forward function set on a module", vars(module)["forward"]


def _held(function: Any, containers: dict[int, Any]) -> str | None:
    """Describes an object that a function holds and that is not a plain value, or returns None.

    Plain containers are added to `containers`.
    """
    function = getattr(function, "__wrapped__", function)
    if (getattr(function, "__module__", None) or "").partition(".")[0] in TRUSTED:
        return None
    if isinstance(function, types.BuiltinFunctionType):
        return None
    if not isinstance(function, types.FunctionType):
        return f"an object of type {type(function).__name__}"
    if function.__closure__:
        return f"{', '.join(function.__code__.co_freevars)} from the enclosing function"
    for name in dict.fromkeys(_globals_of(function.__code__)):
        value = function.__globals__.get(name)
        if type(value) in (list, dict, set) and _plain(value):
            containers[id(value)] = value
        elif not isinstance(value, SAFE_GLOBALS):
            return f"{name}, an object of type {type(value).__name__}"
    return None


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Yields the globals that code uses, with those of nested code. `co_names` lists its attributes as well."""
    for instruction in dis.get_instructions(code):
        if "GLOBAL" in instruction.opname or instruction.opname == "LOAD_NAME":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _plain(container: Any) -> bool:
    """Returns whether a container holds only plain values, which need not be copied themselves."""
    entries = (*container, *container.values()) if isinstance(container, dict) else tuple(container)
    return len(entries) <= MOST_ENTRIES and all(isinstance(each, SAFE_GLOBALS) for each in entries)
