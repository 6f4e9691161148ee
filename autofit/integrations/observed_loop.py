"""Observes a training loop until its first optimizer step, and says what it trains as arguments of `autofit.tune`.

Torch's global hooks show which module is called outside any other and when an optimizer steps, `Tensor.backward` shows
the loss, and `DataLoader.__iter__` the batches. A rule for the loss counts only if it gives the loss that the loop
computed, from the same batch and the same random draws.
"""

import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from autofit.api import tune
from autofit.core.errors import UsageError, WorkloadError
from autofit.fit import Fit
from autofit.guard import Guard
from autofit.guard.object_state import ValuePiece
from autofit.guard.process_state import global_rngs
from autofit.integrations.trainer_fit import with_kept_batch
from autofit.torch_internals import global_step_hooks
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.loss import resolve_loss, whole_call
from autofit.workloads.tree import map_tensors, tensors
from autofit.workloads.workload import Workload

_KEPT = 8
"""Number of batches, and of micro batches of the first step, that are kept: a loader may be some batches ahead."""
_TOLERANCE = 1e-4
"""Relative difference up to which two losses are the same. The draws are, and kernels may differ."""


@dataclass(slots=True)
class _Call:
    """A call of a module outside any other module, with gradients."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draws: Sequence[ValuePiece]
    autocast: torch.dtype | None

    @property
    def trains(self) -> bool:
        """Whether the module has trainable parameters, unlike a criterion."""
        return any(parameter.requires_grad for parameter in self.module.parameters())

    @property
    def inputs(self) -> Any:
        """The arguments as inputs of a batch: one tensor, or keywords."""
        if len(self.args) == 1 and not self.kwargs:
            return self.args[0]
        try:
            return dict(inspect.signature(self.module.forward).bind(*self.args, **self.kwargs).arguments)
        except (TypeError, ValueError):  # no signature
            return self.args


@dataclass(frozen=True, slots=True)
class _Pass:
    """A backward pass: the value of what was backpropagated, the call of the model, and that of a criterion."""

    value: Tensor
    model: _Call
    criterion: _Call | None

    @property
    def batch(self) -> Any:
        """The batch that gives this loss if no loader does."""
        inputs = self.model.inputs
        return inputs if self.criterion is None else (inputs, self.criterion.args[1])


@dataclass(frozen=True, slots=True)
class ObservedWorkload:
    """What a loop trains.

    Attributes:
        model: what computes the outputs.
        loader: where its batches come from: a DataLoader, or the batches of the first step if no DataLoader made them.
        optimizer: what steps.
        terms: the loss, as arguments of `autofit.tune`.
        about: the loss, as Python code; "" if it is inferred.
        global_batch_size: samples per optimizer step.
        autocast: precision of the loop's autocast; None if it has none.
    """

    model: nn.Module
    loader: Any
    optimizer: torch.optim.Optimizer
    terms: Mapping[str, Any]
    about: str
    global_batch_size: int
    autocast: torch.dtype | None

    def tune(self, arguments: Mapping[str, Any]) -> Fit:
        """Tunes it. The samples per optimizer step are kept unless arguments say otherwise.

        Args:
            arguments: those of `autofit.tune` that the user gave.

        Raises:
            AutofitError: see `autofit.tune`.
        """
        chosen = dict(arguments)
        if self.autocast is torch.float16:  # a plan with fp16 has its own autocast and scaler
            chosen["pinned"] = {"precision": "fp16", **arguments.get("pinned", {})}
        elif self.autocast is not None or accelerate_precision() not in ("", "no"):
            chosen["without"] = (*arguments.get("without", ()), "precision")
        if "max_global_batch_size" not in arguments:
            chosen = {"global_batch_size": self.global_batch_size, **chosen}
        kind = next(self.model.parameters()).device.type
        with torch.enable_grad(), torch.autocast(kind, enabled=False):
            fit = tune(self.model, self.loader, optimizer=self.optimizer, **self.terms, **chosen)
        return with_kept_batch(fit, "of your loop", arguments)


@dataclass(slots=True)
class ObservedLoop:
    """Observes the loops of this process until the first optimizer step, while it is entered.

    Args:
        on_step: called once, before the step, with the optimizer and whether its step has a closure.
    """

    on_step: Callable[[torch.optim.Optimizer, bool], None]
    _undo: ExitStack = field(default_factory=ExitStack)
    _thread: int = field(default_factory=threading.get_ident)
    _process: int = field(default_factory=os.getpid)
    _hook: RemovableHandle | None = None
    _stepping: bool = False
    _closed: bool = False
    _depth: int = 0
    _began: tuple[Sequence[ValuePiece], torch.dtype | None] = ((), None)
    _batches: "deque[tuple[Any, Any]]" = field(default_factory=lambda: deque(maxlen=_KEPT))
    _calls: "deque[_Call]" = field(default_factory=lambda: deque(maxlen=2))
    _passes: list[_Pass] = field(default_factory=list)
    _count: int = 0
    _scaler: torch.amp.GradScaler | None = None

    def __enter__(self) -> Self:
        self._hook = optimizers.register_optimizer_step_pre_hook(self._step)
        self._undo.callback(modules.register_module_forward_pre_hook(self._before).remove)
        after = modules.register_module_forward_hook(self._after, with_kwargs=True)
        self._undo.callback(after.remove)
        # In torch 2.11 to 2.13, `remove` leaves this entry, for which compiled models warn of global hooks.
        self._undo.callback(modules._global_forward_hooks_with_kwargs.pop, after.id, None)
        self._wrap(DataLoader, "__iter__", self._iterating)
        self._wrap(Tensor, "backward", self._backward)
        self._wrap(torch.amp.GradScaler, "scale", self._scaling)
        return self

    def __exit__(self, *_: object) -> None:
        self._stepping = False
        self.close()

    def close(self) -> None:
        """Ends the observation. What was seen is kept."""
        self._closed = True
        self._undo.close()
        several = global_step_hooks() > 1
        if self._hook is not None and not (self._stepping and several):  # torch iterates over them in a step
            self._hook.remove()

    @property
    def here(self) -> bool:
        """Whether this is the process that is observed, and not one forked from it."""
        return os.getpid() == self._process

    def workload(self, optimizer: torch.optim.Optimizer, closure: bool) -> ObservedWorkload:
        """Returns what the loop trains.

        Args:
            optimizer: what steps.
            closure: whether its step has a closure.

        Raises:
            UsageError: it could not be established; the message says why.
        """
        first = self._checked(optimizer, closure)
        got = next(tensors(first.model.inputs), torch.empty(0))
        matching = [
            (loader, batch)
            for loader, batch in reversed(self._batches)
            if any(each.shape == got.shape and torch.equal(each.to(got), got) for each in tensors(batch))
        ]
        for loader, batch in (*matching, ([each.batch for each in self._passes], first.batch)):
            for about, terms in _rules(first, batch):
                if (found := self._agreeing(first, loader, batch, optimizer, terms)) is not None:
                    size = (getattr(loader, "batch_size", None) or batch_size(batch)) * self._count
                    model, autocast = first.model.module, first.model.autocast
                    return ObservedWorkload(model, loader, optimizer, found, about, size, autocast)
        raise UsageError(
            "found no rule that gives the loss of the loop: it is not in the model's output, and neither a criterion "
            "of output and targets nor a usual function of them has its value; expected one of these, divided by the "
            "number of micro batches in a step. Write it as step_fn."
        )

    def _checked(self, optimizer: torch.optim.Optimizer, closure: bool) -> _Pass:
        """Returns the first backward pass, if the loop is one that can be tuned."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise UsageError(
                f"found {distributed.get_world_size()} processes that train together; expected one. Tune on one device."
            )
        if closure:
            raise UsageError(
                "found an optimizer whose step gets a closure; expected loss.backward() before optimizer.step(). "
                "Write the loss as step_fn."
            )
        if not self._passes:
            raise UsageError(
                "found no loss.backward() after a call of the model before the first optimizer step; expected one. "
                "Write the loss as step_fn."
            )
        first = self._passes[0]
        trained = {id(parameter) for parameter in first.model.module.parameters()}
        if any(id(parameter) not in trained for group in optimizer.param_groups for parameter in group["params"]):
            raise UsageError(
                f"found an optimizer with parameters of other modules than {type(first.model.module).__name__}, which "
                "was called last; expected one model. Put them into one nn.ModuleDict, and write the step as update_fn."
            )
        return first

    def _agreeing(
        self, first: _Pass, loader: Any, batch: Any, optimizer: torch.optim.Optimizer, terms: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Returns terms under the autocast of the loop if they give its loss, and restores what finding out changes."""
        model, autocast = first.model.module, first.model.autocast
        device = next(model.parameters()).device
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        guard = Guard.of(Workload(model, loader, optimizer=optimizer, **terms))
        with guard.backstop, guard, torch.enable_grad(), torch.autocast(device.type, autocast, autocast is not None):
            moved = map_tensors(batch, lambda tensor: tensor.detach().to(device, copy=True))
            try:
                compute = resolve_loss(model, moved, **terms).compute
                for piece in first.model.draws:
                    piece.restore()
                loss = compute(model, moved).detach().float()
            except Exception:  # noqa: BLE001  # the user's code, called as it may not be meant
                return None
        if not torch.isclose(loss, first.value.to(loss) * self._count / scale, rtol=_TOLERANCE, atol=0):
            return None
        if autocast in (None, torch.float16):
            return terms

        def step(model: nn.Module, batch: Any) -> Tensor:
            with torch.autocast(device.type, autocast):
                return compute(model, batch)

        return {"step_fn": step}

    def _wrap(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Has a method call `instead` with the method and its arguments, until the observation ends."""
        method = getattr(owner, name)
        self._undo.callback(setattr, owner, name, method)
        setattr(owner, name, lambda *args, **kwargs: instead(method, *args, **kwargs))

    def _iterating(self, method: Callable[..., Iterator[Any]], loader: Any) -> Iterator[Any]:
        batches = method(loader)  # at once, since it draws a random number

        def noted() -> Iterator[Any]:
            for batch in batches:
                if not self._closed:
                    self._batches.append((loader, batch))
                yield batch

        return noted()

    def _before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._depth += 1
        if self._depth == 1 and torch.is_grad_enabled():
            kind = next((parameter.device.type for parameter in module.parameters()), "cpu")
            self._began = global_rngs(), torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for piece in self._began[0]:
                piece.save()

    def _after(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if self._depth == 0 and torch.is_grad_enabled():
            self._calls.append(_Call(module, args, kwargs, *self._began))

    def _backward(self, method: Callable[..., None], loss: Tensor, *args: Any, **kwargs: Any) -> None:
        calls = [call for call in self._calls if call.trains]
        if calls and self._depth == 0:
            self._count += 1
            last = self._calls[-1]
            criterion = last if last is not calls[-1] and len(last.args) == 2 and not last.kwargs else None
            if criterion is not None:
                criterion.args = (None, criterion.args[1])  # the outputs may be large
            if len(self._passes) < _KEPT:
                self._passes.append(_Pass(loss.detach().clone(), calls[-1], criterion))
        self._calls.clear()
        before = self._depth
        self._depth += 1  # what checkpointing computes again, and stops by an exception, is not a call of the loop
        try:
            method(loss, *args, **kwargs)
        finally:
            self._depth = before

    def _scaling(self, method: Callable[..., Any], scaler: torch.amp.GradScaler, *args: Any) -> Any:
        self._scaler = scaler
        return method(scaler, *args)

    def _step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.here and not self._stepping:
            self._stepping = True
            self.close()
            try:
                self.on_step(optimizer, any(each is not None for each in (*args[1:], *kwargs.values())))
            finally:
                self._passes.clear()
                self._batches.clear()


def _rules(first: _Pass, batch: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields what the loss may be: arguments of `autofit.tune`, before them as Python code; "" if it is inferred."""
    if first.criterion is not None:
        criterion = first.criterion.module
        yield "loss_fn=criterion", {"loss_fn": criterion}
        rows = "outputs.flatten(0, -2), targets.flatten()"  # of tokens
        yield f"loss_fn=lambda outputs, targets: criterion({rows})", {"loss_fn": _of_rows(criterion)}
        return
    yield "", {}
    yield "loss_fn=F.binary_cross_entropy_with_logits", {"loss_fn": F.binary_cross_entropy_with_logits}
    try:
        call, text = whole_call(first.model.module, batch)
    except WorkloadError:
        return
    code = text.replace("inputs", "batch[0]")
    yield f"step_fn=lambda model, batch: {code}", {"step_fn": call}
    yield f"step_fn=lambda model, batch: {code}[0]", {"step_fn": lambda model, batch: call(model, batch)[0]}
    yield f"step_fn=lambda model, batch: {code}[1]", {"step_fn": lambda model, batch: call(model, batch)[1]}


def _of_rows(criterion: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = criterion(outputs.flatten(0, -2), targets.flatten())
        return loss

    return loss_fn


def accelerate_precision() -> str:
    """Returns the precision of this process's `Accelerator`; "" if there is none."""
    state = sys.modules.get("accelerate.state")
    return str(state.AcceleratorState().mixed_precision) if state is not None and state.is_initialized() else ""
