"""Observes a training loop until its first optimizer step, and says what it trains as arguments of `autofit.tune`.

Torch's global hooks show which module is called outside any other and when an optimizer steps, `Tensor.backward` shows
the loss, `clip_grad_norm_` how gradients are clipped, and `DataLoader.__iter__` the batches. A rule for the loss counts
only if it gives the loss that the loop computed, from the same batch and the same random draws.
"""

import inspect
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from autofit import in_process
from autofit.api import tune
from autofit.core.errors import UsageError, WorkloadError
from autofit.fit import Fit
from autofit.guard import Guard
from autofit.guard.object_state import ValuePiece
from autofit.guard.process_state import global_rngs
from autofit.integrations.plan_settings import with_kept_batch
from autofit.torch_internals import global_step_hooks
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.loss import Call, resolve_loss, whole_call
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
        loader: where its batches come from: a DataLoader, or the batches of the first step if no DataLoader made them.
        terms: the loss, as arguments of `autofit.tune`.
        about: the loss, as Python code; "" if it is inferred.
        global_batch_size: samples per optimizer step.
        autocast: precision of the loop's autocast; None if it has none.
        max_grad_norm: L2 norm to which the loop clips gradients; None if it does not.
    """

    model: nn.Module
    loader: Any
    optimizer: torch.optim.Optimizer
    terms: Mapping[str, Any]
    about: str
    global_batch_size: int
    autocast: torch.dtype | None
    max_grad_norm: float | None

    def tune(self, arguments: Mapping[str, Any]) -> Fit:
        """Tunes it. The samples per optimizer step are kept unless the arguments of `autofit.tune` say otherwise.

        Raises:
            AutofitError: see `autofit.tune`.
        """
        chosen = {"max_grad_norm": self.max_grad_norm, **arguments}
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

    `on_step` is called once, before the step, with the optimizer and whether its step has a closure. `searched` is
    whether the loop's process started a search of its own, which ends the observation.
    """

    on_step: Callable[[torch.optim.Optimizer, bool], None]
    searched: bool = False
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
    _clippings: list[tuple[frozenset[int], float | None]] = field(default_factory=list)
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
        for module in (nn.utils, nn.utils.clip_grad):
            self._wrap(module, "clip_grad_norm_", self._clipping)
            self._wrap(module, "clip_grad_value_", self._clipping)
        self._wrap(in_process, "search_in_process", self._searching)
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
        """Returns what the loop trains; `closure` is whether the optimizer's step has one.

        Raises:
            UsageError: it could not be established; the message says why.
        """
        first = self._checked(optimizer, closure)
        clipped = self._clipped(first.model.module)
        got = next(tensors(first.model.inputs), torch.empty(0))
        matching = [
            (loader, batch)
            for loader, batch in reversed(self._batches)
            if any(_same(each, got) for each in tensors(batch))
        ]
        for loader, batch in (*matching, ([each.batch for each in self._passes], first.batch)):
            for about, terms in _rules(first, batch):
                if (found := self._agreeing(first, loader, batch, optimizer, terms)) is not None:
                    size = (getattr(loader, "batch_size", None) or batch_size(batch)) * self._count
                    model, autocast = first.model.module, first.model.autocast
                    return ObservedWorkload(model, loader, optimizer, found, about, size, autocast, clipped)
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

    def _clipped(self, model: nn.Module) -> float | None:
        """Returns the L2 norm to which gradients were clipped in the first step; None if they were not.

        Raises:
            UsageError: they were clipped in a way that a plan's step does not know.
        """
        trained = frozenset(id(parameter) for parameter in model.parameters() if parameter.requires_grad)
        found = [(clipped, norm) for clipped, norm in self._clippings if norm != math.inf]  # which only measures it
        if not found:
            return None
        clipped, norm = found[0]
        if len(found) == 1 and norm is not None and clipped == trained:
            return norm
        raise UsageError(
            "found gradients clipped otherwise than to one L2 norm of all parameters, once for each optimizer step; "
            "expected clip_grad_norm_(model.parameters(), max_norm) before the step. Write the step as update_fn."
        )

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

    def _clipping(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(method).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments["parameters"]
        parameters = [given] if isinstance(given, Tensor) else list(given)  # an iterator
        bound.arguments["parameters"] = parameters
        if self._count and not self._closed and threading.get_ident() == self._thread:
            is_l2 = bound.arguments.get("norm_type") == 2
            ids = frozenset(id(parameter) for parameter in parameters if parameter.requires_grad)
            self._clippings.append((ids, float(bound.arguments["max_norm"]) if is_l2 else None))
        return method(*bound.args, **bound.kwargs)

    def _searching(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.searched = True
        self.close()
        return method(*args, **kwargs)

    def _step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.here and not self._stepping:
            self._stepping = True
            self.close()
            try:
                self.on_step(optimizer, any(each is not None for each in (*args[1:], *kwargs.values())))
            finally:
                self._passes.clear()
                self._batches.clear()


_FORMS: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "{0}, {1}": lambda outputs, targets: (outputs, targets),
    "{0}.flatten(0, -2), {1}.flatten()": lambda outputs, targets: (outputs.flatten(0, -2), targets.flatten()),
    "{0}.reshape({1}.shape), {1}": lambda outputs, targets: (outputs.reshape(targets.shape), targets),
}
"""What a loss gets of outputs and targets, by its Python code: as they are, as rows of tokens, as one column."""
_PLAIN, _ROWS, _COLUMN = _FORMS
_FUNCTIONS = (
    (F.cross_entropy, _PLAIN),
    (F.cross_entropy, _ROWS),
    (F.mse_loss, _COLUMN),
    (F.binary_cross_entropy_with_logits, _COLUMN),
)
"""The usual functions of outputs and targets, each with a form of them."""
_PICKS: Mapping[str, Callable[[Any], Any]] = {
    "": lambda output: output,
    "[0]": lambda output: output[0],
    "[1]": lambda output: output[1],
    ".loss": lambda output: output.loss,
}
"""Where a model's output has its loss, by its Python code."""


def _rules(first: _Pass, batch: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields what the loss may be: arguments of `autofit.tune`, before them as Python code; "" if it is inferred."""
    if first.criterion is not None:
        criterion = first.criterion.module
        yield "loss_fn=criterion", {"loss_fn": criterion}
        for form in (_ROWS, _COLUMN):
            code = f"loss_fn=lambda outputs, targets: criterion({form.format('outputs', 'targets')})"
            yield code, {"loss_fn": _formed(criterion, form)}
    else:
        yield "", {}
        yield "loss_fn=F.binary_cross_entropy_with_logits", {"loss_fn": F.binary_cross_entropy_with_logits}
        with suppress(WorkloadError):
            call, code = whole_call(first.model.module, batch)
            yield from _of_outputs(call, code.replace("inputs", "batch[0]"))
    yield from _of_entries(first, _entries(batch))


def _of_outputs(call: Call, code: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for suffix, pick in _PICKS.items():
        yield f"step_fn=lambda model, batch: {code}{suffix}", {"step_fn": _composed(call, pick)}


def _of_entries(first: _Pass, entries: Mapping[Any, Tensor]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields losses of which the model gets some entries of the batch, and the criterion another one."""
    given = [*(("", value) for value in first.model.args), *first.model.kwargs.items()]
    taken = [(name, *each) for name, value in given if (each := _taken(value, entries)) is not None]
    if len(taken) < len(given):
        return

    def call(model: nn.Module, batch: Any) -> Any:
        args = [pick(batch) for name, pick, _ in taken if not name]
        return model(*args, **{name: pick(batch) for name, pick, _ in taken if name})

    code = f"model({', '.join(f'{name}={text}' if name else text for name, _, text in taken)})"
    functions: Sequence[tuple[Callable[..., Tensor], str]] = _FUNCTIONS
    if first.criterion is None:
        yield from _of_outputs(call, code)
    else:
        functions = [(first.criterion.module, form) for form in _FORMS]
        wanted = first.criterion.args[1]
        alike = isinstance(wanted, Tensor)
        entries = {key: each for key, each in entries.items() if alike and _same(each.flatten(), wanted.flatten())}
    used = {text for _, _, text in taken}
    for key in (key for key in entries if _entry(key) not in used):
        for function, form in functions:
            name = "criterion" if first.criterion is not None else f"F.{function.__name__}"
            loss, formed = f"{name}({form.format(code, _entry(key))})", _formed(function, form)
            yield f"step_fn=lambda model, batch: {loss}", {"step_fn": _with_targets(call, formed, key)}


def _taken(value: Any, entries: Mapping[Any, Tensor]) -> tuple[Callable[[Any], Any], str] | None:
    """Returns how an argument of the model's call comes from a batch, and that as code; None if that is not known."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return lambda batch: value, repr(value)
    if not isinstance(value, Tensor):
        return None
    return next(((itemgetter(key), _entry(key)) for key, each in entries.items() if _same(each, value)), None)


def _entries(batch: Any) -> dict[Any, Tensor]:
    """Returns the tensors of a batch, by their keys or places in it."""
    places = batch if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, (list, tuple)) else ()))
    return {key: value for key, value in places.items() if isinstance(value, Tensor)}


def _entry(key: Any) -> str:
    return f"batch[{key!r}]"


def _same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same values, on whatever device and in whatever type."""
    return one.shape == other.shape and torch.equal(one.to(other), other)


def _formed(loss: Callable[..., Tensor], form: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: loss(*_FORMS[form](outputs, targets))


def _composed(call: Call, pick: Callable[[Any], Any]) -> Call:
    return lambda model, batch: pick(call(model, batch))


def _with_targets(call: Call, loss: Callable[[Tensor, Tensor], Tensor], key: Any) -> Call:
    return lambda model, batch: loss(call(model, batch), batch[key])


def accelerate_precision() -> str:
    """Returns the precision of this process's `Accelerator`; "" if there is none."""
    state = sys.modules.get("accelerate.state")
    return str(state.AcceleratorState().mixed_precision) if state is not None and state.is_initialized() else ""
