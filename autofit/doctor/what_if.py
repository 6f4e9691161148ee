"""What if: changes that are applied to a step from outside, and the peak of memory that the device then has.

A change that only moves releases can be replayed. One that replaces what is computed has to be run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from autofit.core.loading import Loading
from autofit.core.plan import KnobValue
from autofit.devices.base import Device
from autofit.probing.compilation import Recompilations
from autofit.probing.loading import WorkerGrowth
from autofit.workloads.step import storage_bytes

STEPS = 2
"""Number of steps whose peak is measured: the first frees what the step before it left."""

Call = tuple[nn.Module, int]
"""A call of a module: the module, and how often it was called before in the same step."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a step.

    Attributes:
        about: the change, as a sentence without a full stop.
        applied: returns a context in which steps run with the change; each step must run inside a new one.
        run: runs a step that is another one than the training's; None for that.
    """

    about: str
    applied: Callable[[], AbstractContextManager[None]] = nullcontext
    run: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Runs steps with a change and measures their peak.

    Attributes:
        run: runs one whole step of the training.
        device: where it runs.
        held: returns the tensors that a step keeps: parameters, buffers, gradients and optimizer state.
        plan: returns the step under a plan with one other value of a knob; None if the training does not offer it.
        loading: returns how fast the loader is with more workers than the user's; None if it needs no more.
        padding: returns the share of padding in a batch, from 0 to 1; None if that is unknown.
        recompilations: returns what is compiled again in steps on the loader's batches; why that is unknown, if it is.
        worker_growth: returns the memory of the loader's workers over time; why that is unknown, if it is.
    """

    run: Callable[[], None]
    device: Device
    held: Callable[[], Iterable[torch.Tensor]]
    plan: Callable[[str, KnobValue], Change | None] = lambda knob, value: None
    loading: Callable[[], Loading | None] = lambda: None
    padding: Callable[[], float | None] = lambda: None
    recompilations: Callable[[], Recompilations | str] = lambda: "the model is not compiled"
    worker_growth: Callable[[], WorkerGrowth | str] = lambda: "the loader has no worker processes"
    _present: list[int | None] = field(default_factory=list)  # the peak without a change, once it is known

    def peak_bytes(self, change: Change | None = None) -> int | None:
        """Returns the peak of live tensors in steps with a change; None if a step fails with it, or is not metered."""
        with suppress(Exception):  # the user's code may need what the change takes away
            self._step(change)
            with self.device.meter(lambda: storage_bytes(self.held(), self.device.torch_device)) as reading:
                for _ in range(STEPS):
                    self._step(change)
                    reading.drain()
            return None if reading.memory is None else reading.memory.allocated_bytes
        return None

    def saved_bytes(self, change: Change) -> int | None:
        """Returns by how much a change lowers the peak; None if that cannot be measured."""
        if not self._present:
            self._present.append(self.peak_bytes())
        before, after = self._present[0], self.peak_bytes(change)
        return None if before is None or after is None else before - after

    def _step(self, change: Change | None) -> None:
        if change is None:
            self.run()
            return
        with change.applied():
            (change.run or self.run)()


@contextmanager
def without_graph(calls: Iterable[Call]) -> Iterator[None]:
    """Runs some calls of modules under `torch.no_grad`."""
    wanted = {(id(module), number) for module, number in calls}
    counts, before, enabled = Counter[int](), list[bool](), torch.is_grad_enabled()
    hooks = list[Any]()

    def enter(module: nn.Module, args: Any) -> None:
        before.append(torch.is_grad_enabled())
        if (id(module), counts[id(module)]) in wanted:
            torch.set_grad_enabled(False)
        counts[id(module)] += 1

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        torch.set_grad_enabled(before.pop())

    for module in {id(module): module for module, _ in calls}.values():
        hooks += [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        torch.set_grad_enabled(enabled)  # torch calls no hook after a KeyboardInterrupt


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Freezes some parameters that are trained."""
    held = list(parameters)
    for parameter in held:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


@contextmanager
def replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replaces the forward methods of some modules."""
    before = {module: vars(module)["forward"] for module in forwards if "forward" in vars(module)}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del vars(module)["forward"]
            vars(module).update({"forward": before[module]} if module in before else {})
