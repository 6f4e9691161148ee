"""WorkClock: time in the work that a plan is measured for, apart from what a trainer does around it."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable


@dataclass(slots=True)
class WorkClock:
    """Adds up the time in forward passes, backward passes and updates, as they begin and end.

    It says nothing of an accelerator, whose work is still queued when a call returns.

    Attributes:
        clock: seconds, monotonic.
    """

    clock: Callable[[], float] = time.perf_counter
    _work_s: float = 0.0
    _since: float | None = None
    _handles: list[Any] = field(default_factory=list)

    def begin(self, *_: Any) -> None:
        """Is called before work. If it was called before, the last call counts."""
        self._since = self.clock()

    def end(self, *_: Any) -> None:
        """Is called after work."""
        if self._since is not None:
            self._work_s += self.clock() - self._since
            self._since = None

    def taken(self) -> float:
        """Returns the seconds of work since the last call."""
        found, self._work_s = self._work_s, 0.0
        return found

    def follow_updates(self, optimizer: torch.optim.Optimizer, *, began: bool = False) -> None:
        """Lets work begin before a step of the optimizer, which may run a closure, and end after it.

        Args:
            optimizer: the optimizer itself, not one that wraps it.
            began: whether work has begun before the step, as with the clipping of gradients.
        """
        if not began:
            self._handles.append(optimizer.register_step_pre_hook(self.begin))
        self._handles.append(optimizer.register_step_post_hook(self.end))

    def follow_passes(self, model: nn.Module) -> None:
        """Lets work begin before a forward pass of the model, rest until the backward pass, and begin again after it.

        If the model does not return its loss, work does not rest. What follows a backward pass is dropped unless work
        ends before the next forward pass.
        """
        before = model.register_forward_pre_hook(self._before_forward, prepend=True)
        self._handles += [before, model.register_forward_hook(self._after_forward)]

    def stop(self) -> None:
        """Removes the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _before_forward(self, *_: Any) -> None:
        if torch.is_grad_enabled():  # else an evaluation
            self.begin()

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        values: Any = output.values() if isinstance(output, Mapping) else output
        several = values if isinstance(values, Iterable) and not isinstance(values, torch.Tensor) else (values,)
        found = next((each for each in several if isinstance(each, torch.Tensor) and each.requires_grad), None)
        if found is None:
            return
        rests = isinstance(output, Mapping) and output.get("loss") is found
        if rests:
            self.end()
            found.register_hook(self.begin)  # type: ignore[no-untyped-call]
        found.register_hook(self._in_backward)  # type: ignore[no-untyped-call]

    def _in_backward(self, gradient: torch.Tensor) -> None:
        # torch has no public hook for the end of a backward pass; its own DDP and FSDP use this one.
        Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self.end()
        self.begin()
