"""Session: observes the steps of a training that someone else runs, and makes the diagnosis."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autofit import devices
from autofit.core.account import Account
from autofit.core.errors import UsageError
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Diagnosis, Finding, Size, Unchecked
from autofit.doctor.findings import members
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import STEPS, Observation
from autofit.doctor.observer import Observer
from autofit.doctor.sites import Site
from autofit.doctor.watch import Watch
from autofit.doctor.what_if import Change, WhatIf
from autofit.identity import versions_of
from autofit.memory.profile import profile
from autofit.workloads.step import lasting_tensors
from autofit.workloads.workload import state_tensors

HOST = Account(allocator="host")
TIME_S = 30.0
"""Usual seconds for further steps with changes. GPT-2 on two cores needs about as many."""
COMPILED = "compiled code is observed without being compiled, since operators inside it are not visible"


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked for, and how long.

    Attributes:
        detectors: what to look for; None for all kinds of findings.
        steps: number of steps to watch after the first.
        runs: whether to run further steps with changes, to measure sizes. Loops and scripts cannot be run again.
        time_s: seconds after which no further step with a change is begun.
        resting: what was seen by `seen.resting` when the models were made.
    """

    detectors: Sequence[Detector] | None = None
    steps: int = STEPS
    runs: bool = True
    time_s: float = TIME_S
    resting: Mapping[nn.Module, Site] = field(default_factory=dict)

    def checked(self) -> Self:
        """Returns this scope if a user may ask for it.

        Raises:
            UsageError: there are too few steps to tell what grows.
        """
        if self.steps < STEPS:
            raise UsageError(f"found {self.steps} steps to watch; expected at least {STEPS}. Watch more.")
        return self


EVERYTHING = Scope()


class Session:
    """Observes a training. `boundary` ends a step.

    The first step runs without the watch: it makes what is made once, shows the models, and lets torch check that no
    weight is changed between a forward and its backward pass.

    Args:
        target: name of what is observed.
        roots: returns the objects, by name, that may hold tensors beside the variables of running functions.
        models: the models; () finds them when they are called.
        device: where the training runs; None is the device of the first model.
        samples: samples of a step, if known.
        scope: what to look for.
        what_if: returns what runs further steps, given the tensors that are kept; None if they cannot be run again.
        saves: see `Watch`.
    """

    def __init__(
        self,
        target: str,
        roots: Callable[[], Mapping[str, object]] = dict,
        models: Sequence[nn.Module] = (),
        device: Device | None = None,
        samples: int | None = None,
        *,
        scope: Scope = EVERYTHING,
        what_if: Callable[[Callable[[], Iterable[torch.Tensor]]], WhatIf] | None = None,
        saves: bool = True,
    ) -> None:
        self._thread = get_ident()  # what others train is left alone
        self._target, self._roots, self._models = target, roots, [weakref.ref(model) for model in models]
        self._device, self._samples, self._saves = device, samples, saves
        self._detectors = members() if scope.detectors is None else scope.detectors
        self._steps = scope.steps
        self._what_if = what_if
        self._rested = {} if any(model.training for model in models) else scope.resting
        self._parts = weakref.WeakSet[nn.Module]()
        self._began_s, self._held = monotonic(), ExitStack()
        self._watch: Watch | None = None
        self._observer: Observer | None = None
        self._until_closed = ExitStack()
        # Registered now: torch does not let hooks of updates be added inside such a hook, where a script's step ends.
        self._until_closed.callback(register_optimizer_step_pre_hook(self._update_begins).remove)
        self._until_closed.callback(register_optimizer_step_post_hook(self._update_ends).remove)
        if not models:
            self._held.callback(register_module_forward_pre_hook(self._called).remove)

    def boundary(self) -> Diagnosis | None:
        """Ends a step. Returns the diagnosis after the last one, and observes nothing any more."""
        if self._observer is None:
            self._begin()
            return None
        observation = self._observer.boundary()
        return None if observation is None else self._diagnosed(observation)

    def end(self, note: str = "", *, failed: bool = False, over: bool = False) -> Diagnosis | None:
        """Ends the observation early, such as after an error. Returns the diagnosis if a whole step was observed.

        `over` says that the functions which trained have returned, so that their variables are gone.
        """
        if self._observer is None or self._watch is None or self._watch.step < 2:  # the first is over
            self.close()
            return None
        observation = self._observer.result()
        observation.over = over
        return self._diagnosed(observation, note, failed=failed)

    def loading(self) -> AbstractContextManager[None]:
        """Returns a context for making a batch: see `Watch.loading`."""
        return nullcontext() if self._watch is None else self._watch.loading()

    def close(self) -> None:
        """Observes nothing any more."""
        self._held.close()
        self._until_closed.close()

    def _update_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._watch is not None:
            self._watch.update_begins(optimizer, args, kwargs)

    def _update_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._watch is not None:
            self._watch.update_ends(optimizer, args, kwargs)

    def _called(self, module: nn.Module, args: Any) -> None:
        if get_ident() == self._thread and module not in self._parts and any(True for _ in module.parameters()):
            self._parts.update(module.modules())
            self._models.append(weakref.ref(module))

    def _alive(self) -> list[nn.Module]:
        return [model for each in self._models if (model := each()) is not None]

    def _begin(self) -> None:
        self._held.close()
        models, host = self._alive(), devices.host().torch_device
        on = (each.device for model in models for each in model.parameters())
        placed = next((each for each in on if each.type not in (host.type, "meta")), host)
        self._device = device = self._device or devices.choose(str(placed))
        self._watch = watch = Watch(device.torch_device, models, saves=self._saves)
        budget_bytes = device.budget(None, False).memory_bytes
        roots = self._roots
        self._observer = Observer(
            watch,
            device.account() or HOST,
            budget_bytes,
            lambda: {**{name or "model": model for name, model in watch.models.items()}, **roots()},
            self._steps,
        )
        self._held.enter_context(collection_off())
        self._held.enter_context(uncompiled())
        self._held.enter_context(watch.watching(called=True))

    def _diagnosed(self, observation: Observation, note: str = "", *, failed: bool = False) -> Diagnosis:
        assert self._device is not None, "the observation has begun"
        self.close()
        observation.device, observation.peaks, observation.rested = self._device, self._device.peaks(), self._rested
        if self._what_if is not None:
            observation.what_if = self._what_if(partial(_held, observation))
        found, unchecked = list[tuple[Finding, Change | None]](), list[Unchecked]()
        for member in self._detectors:
            if reason := member.skipped(observation):
                unchecked.append(Unchecked(id=member.id, reason=reason))
            else:
                found += [_measured(member, each, observation) for each in member.find(observation)]
        findings = _raced(sorted(found, key=lambda each: _rank(each[0])), observation.what_if)
        views, left_out = observation.views, {each.id for each in unchecked}
        return Diagnosis(
            target=self._target,
            device_name=self._device.name(),
            device_type=self._device.type,
            versions=versions_of(self._device),
            samples=self._samples,
            steps=len(observation.watch.levels),
            peak_bytes=observation.peak_bytes,
            budget_bytes=observation.budget_bytes,
            profile=profile(views.trace, views.use, observation.account),
            unread=views.unread_bytes(),
            levels=tuple(observation.watch.levels),
            findings=tuple(findings),
            checked=tuple(member.id for member in self._detectors if member.id not in left_out),
            unchecked=tuple(unchecked),
            notes=(*((note,) if note else ()), *self._notes(observation)),
            failed=failed,
            duration_s=round(monotonic() - self._began_s, 2),
        )

    def _notes(self, observation: Observation) -> Iterator[str]:
        """Yields what else a reader must know."""
        if any(is_compiled(part) for model in self._alive() for part in model.modules()):
            yield COMPILED
        if (higher := observation.higher) is not None:
            yield f"watched step {higher.step} reaches {format_bytes(higher.peak_bytes)}, more than the judged step"


def _measured(member: Detector, finding: Finding, observation: Observation) -> tuple[Finding, Change | None]:
    """Returns a finding with the size that steps have with the change that removes it, and that change.

    Without time for further steps, or if they fail with the change, the finding stays as it is.
    """
    what_if = observation.what_if
    if finding.minor or what_if is None or what_if.over:
        return finding, None
    if finding.confirmed:
        return finding, what_if.changes.get(finding.confirmed)
    change = member.change(observation, finding)
    saved_bytes = None if change is None else what_if.saved_bytes(change)
    if change is None or saved_bytes is None:
        return finding, None
    size = Size(peak_bytes=max(saved_bytes, 0), basis="measured", bound=change.bound)
    if change.bound and finding.size is not None and not finding.size.bound:
        size = finding.size  # of the correction itself
    return finding.model_copy(update={"size": size, "confirmed": change.about}), change


def _raced(found: Iterable[tuple[Finding, Change | None]], what_if: WhatIf | None) -> Iterator[Finding]:
    """Yields findings with how much faster steps are with the change, as far as the time lasts."""
    for finding, change in found:
        speed = None if change is None or what_if is None or what_if.over else what_if.speed(change)
        yield finding.model_copy(update={"speed": speed})


def _held(observation: Observation) -> Iterator[torch.Tensor]:
    """Yields the tensors that the training keeps between steps."""
    yield from observation.constants
    for model in observation.watch.models.values():
        yield from lasting_tensors(model)
    for optimizer in observation.watch.optimizers.values():
        yield from state_tensors(optimizer)


def _rank(finding: Finding) -> tuple[bool, int, int]:
    """Returns a key that sorts growth first, then what costs most at the peak; minor findings come last."""
    size = finding.size
    if size is None:
        return finding.minor, 2, 0
    growth = size.bytes_per_step or size.host_bytes_per_step
    return finding.minor, 0 if growth else 1, -(growth or size.peak_bytes or 0)


@contextmanager
def collection_off() -> Iterator[None]:
    """Keeps Python's garbage collection, which frees tensors at arbitrary moments, out of the steps."""
    gc.collect()  # may end an abandoned observation, which puts the collection back
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs compiled functions as they were written."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled; loading it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def is_compiled(module: nn.Module) -> bool:
    """Returns whether the module itself was compiled, as a wrapper or in place."""
    return type(module).__name__ == "OptimizedModule" or vars(module).get("_compiled_call_impl") is not None
