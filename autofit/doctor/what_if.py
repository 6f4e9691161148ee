"""What if: changes that are applied to a step from outside, and the peak of memory and the time that it then has.

A change that only moves releases can be replayed. One that replaces what is computed has to be run.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import signature
from itertools import count
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import nn

from autofit.core.answer import Ratio
from autofit.core.loading import Loading
from autofit.core.objective import TIE_RATIO
from autofit.core.plan import KnobValue
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Bound
from autofit.doctor.sites import Site
from autofit.doctor.waits import WaitTimer
from autofit.probing.compilation import Recompilations
from autofit.probing.loading import WorkerGrowth
from autofit.search.race import Race, run_race
from autofit.workloads.step import storage_bytes

STEPS = 2
"""Number of steps whose peak is measured: the first frees what the step before it left."""
BLOCK_S = 0.05
"""Least seconds of a block of steps in a race, so that the clock and the change of steps count for little."""
PACE_STEPS = 5
"""Number of steps of which the median time counts."""
RACE_S = 4.0
"""Seconds after which a race ends undecided if it has the rounds that a decision needs. A change that is worth while is
decided earlier."""
CHANGED, PRESENT = "changed", "present"
_INPUTS = 6
"""Number of positional arguments of `torch.autograd.backward` with which `inputs` is one of them."""

Call = tuple[nn.Module, int]
"""A call of a module: the module, and how often it was called before in the same step."""
Run = Callable[[], None]
"""Runs one step."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a step.

    Attributes:
        about: the change, as a sentence without a full stop.
        applied: returns a context in which one step of the training runs with the change.
        opened: returns a context with a function that runs a step which is another one than the training's; None for
            that.
        bound: "at least" if the correction in the code saves more than the change.
    """

    about: str
    applied: Callable[[], AbstractContextManager[None]] = nullcontext
    opened: Callable[[], AbstractContextManager[Run]] | None = None
    bound: Bound = ""


@dataclass(frozen=True, slots=True)
class HostPace:
    """How the host and an accelerator share the time of a step.

    Attributes:
        issue_s: seconds until the host has issued all work of a step.
        step_s: seconds until the device has done it.
        waits_s: seconds that the host waits meanwhile, at least, by reason and line.
    """

    issue_s: float
    step_s: float
    waits_s: Mapping[tuple[str, Site], float]


@dataclass
class WhatIf:
    """Runs steps with a change and measures their peak and their time.

    Attributes:
        run: runs one whole step of the training.
        device: where it runs.
        held: returns the tensors that a step keeps: parameters, buffers, gradients and optimizer state.
        plan: returns the step under a plan with one other value of a knob; None if the training does not offer it.
        loading: returns how fast the loader is with more workers than the user's; None if it needs no more.
        padding: returns the share of padding in a batch, from 0 to 1; None if that is unknown.
        recompilations: returns what is compiled again in steps on the loader's batches; why that is unknown, if it is.
        worker_growth: returns the memory of the loader's workers over time; why that is unknown, if it is.
        batch: returns a batch as the loader makes it; None if the training has no such batches.
        until_s: value of `time.monotonic` from which on nothing further is begun.
        changes: the changes whose peaks were measured, by `Change.about`.
    """

    run: Run
    device: Device
    held: Callable[[], Iterable[torch.Tensor]]
    plan: Callable[[str, KnobValue], Change | None] = lambda knob, value: None
    loading: Callable[[], Loading | None] = lambda: None
    padding: Callable[[], float | None] = lambda: None
    recompilations: Callable[[], Recompilations | str] = lambda: "the model is not compiled"
    worker_growth: Callable[[], WorkerGrowth | str] = lambda: "the loader has no worker processes"
    batch: Callable[[], Any] = lambda: None
    until_s: float = math.inf
    changes: dict[str, Change] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the time for further steps is over."""
        return monotonic() >= self.until_s

    def peak_bytes(self, change: Change | None = None) -> int | None:
        """Returns the peak of live tensors in steps with a change; None if a step fails with it, or is not metered."""
        with suppress(Exception), self._steps(change) as run:  # the user's code may need what the change takes away
            run()
            with self.device.meter(lambda: storage_bytes(self.held(), self.device.torch_device)) as reading:
                for _ in range(STEPS):
                    run()
                    reading.drain()
            return None if reading.memory is None else reading.memory.allocated_bytes
        return None

    @cached_property
    def present_bytes(self) -> int | None:
        """The peak of steps without a change; None if it cannot be measured."""
        return self.peak_bytes()

    def saved_bytes(self, change: Change) -> int | None:
        """Returns by how much a change lowers the peak; None if that cannot be measured."""
        before, after = self.present_bytes, self.peak_bytes(change)
        self.changes[change.about] = change
        return None if before is None or after is None else before - after

    @cached_property
    def pace(self) -> HostPace | None:
        """How the host and the device share the time of a step; None if a step fails."""
        with suppress(Exception):
            timer, times = WaitTimer(self.device.type), list[tuple[float, float]]()
            with timer:
                self.run()
            for _ in range(PACE_STEPS):
                self.device.synchronize()
                began = perf_counter()
                self.run()
                issued = perf_counter()
                self.device.synchronize()
                times.append((issued - began, perf_counter() - began))
            issue_s, step_s = (median(each) for each in zip(*times, strict=True))
            return HostPace(issue_s, step_s, timer.waits_s)
        return None

    @cached_property
    def transient_bytes(self) -> int | None:
        """By how much a step raises the memory that the device counts as allocated; None if that is unknown."""
        with suppress(Exception):
            self.run()
            with self.device.meter(lambda: storage_bytes(self.held(), self.device.torch_device)) as reading:
                reading.drain()
            if reading.memory is not None and self.present_bytes is not None:
                return self.present_bytes - reading.memory.allocated_bytes
        return None

    def speed(self, change: Change) -> Ratio | None:
        """Returns how many times as fast steps are with a change, from a race in interleaved blocks.

        Returns None if the difference is within the noise, if a step fails, or if the time is over before a decision.
        """
        long_s = monotonic() + RACE_S
        race, counts = Race((CHANGED, PRESENT), pinned=PRESENT), dict[str, int]()

        def block(name: str) -> float | str:
            try:
                with self._steps(change if name == CHANGED else None) as run:
                    if name not in counts:
                        run()
                        _, step_s = self.device.timed(run)
                        counts[name] = math.ceil(BLOCK_S / max(step_s, 1e-6))
                    elif change.opened is not None:  # what it made anew is slow at first
                        run()
                    _, block_s = self.device.timed(lambda: [run() for _ in range(counts[name])])
                    return counts[name] / block_s
            except Exception as error:  # noqa: BLE001  # the user's code may need what the change takes away
                return type(error).__name__

        def is_late() -> bool:
            now_s = monotonic()
            return now_s >= self.until_s or (race.ripe and now_s >= long_s)

        run_race(race, block, is_late, late=is_late)
        pairing = race.pairing(CHANGED, PRESENT)
        if race.left.get(PRESENT) or pairing is None:
            return None
        ratio = pairing.ratio()
        return ratio if (ratio.low > 1 or ratio.high < 1) and abs(pairing.log_ratio) > TIE_RATIO else None

    @contextmanager
    def _steps(self, change: Change | None) -> Iterator[Run]:
        """Yields what runs a step with a change."""
        if change is None:
            yield self.run
        elif change.opened is not None:
            with change.opened() as run:
                yield run
        else:

            def run_changed() -> None:
                with change.applied():
                    self.run()

            yield run_changed


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
def frozen(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
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
def narrowed(constants: Iterable[torch.Tensor], run: Run) -> Iterator[Run]:
    """Yields what runs a step while some float64 tensors are float32."""
    before = [(each, each.data) for each in constants]
    try:
        for each, wide in before:
            each.data = wide.float()
        yield run
    finally:
        for each, wide in before:
            each.data = wide


@contextmanager
def only_used(unused: Mapping[int, Iterable[torch.Tensor]], parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Has the backward passes of a step leave out gradients: those of some parameters, by number of the pass, from 1.

    The other `parameters` get theirs. A pass that names its inputs itself stays as it is.
    """
    left_out = {number: {id(each) for each in some} for number, some in unused.items()}
    trained = [each for each in parameters if each.requires_grad and each.is_leaf]
    backward, passes = torch.autograd.backward, 0

    def backward_of_used(*args: Any, **kwargs: Any) -> None:
        nonlocal passes
        passes += 1
        if passes in left_out and kwargs.get("inputs") is None and len(args) < _INPUTS:
            kwargs["inputs"] = [each for each in trained if id(each) not in left_out[passes]]
        backward(*args, **kwargs)

    torch.autograd.backward = backward_of_used
    try:
        yield
    finally:
        torch.autograd.backward = backward


@contextmanager
def graphless(numbers: Container[int], retained: bool) -> Iterator[None]:
    """Has passes of a step make no graph: some of those with `create_graph=True`, by number among these, from 1.

    The graph that they pass through is kept if it is to be `retained` or they say so.
    """
    before = {name: getattr(torch.autograd, name) for name in ("grad", "backward")}
    seen = count(1)

    def changed(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = signature(run).bind(*args, **kwargs).arguments
        if given.get("create_graph") and next(seen) in numbers:
            given |= {"create_graph": False, "retain_graph": given.get("retain_graph") or retained}
        return run(**given)

    for name, run in before.items():
        setattr(torch.autograd, name, partial(changed, run))
    try:
        yield
    finally:
        for name, run in before.items():
            setattr(torch.autograd, name, run)


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
