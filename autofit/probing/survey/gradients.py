"""Gradients of one step that can be compared: they use the same modes, random numbers and initial state."""

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.probing.survey.module_modes import Modes, evaluating
from autofit.probing.survey.rounding_limits import ACCUMULATION_L2, most_l2
from autofit.probing.survey.shared_draws import DrawLog, SharedDraws
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted, counted
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.tree import Batch

OF_TORCH = ("__dynamo_disable", "_torchdynamo")
"""Parts of the names of attributes that torch itself sets on functions and modules when they are first called."""
VECTORS = 4
"""Number of gradients for which a device must have room, so that those that are compared stay there: two, the next
one, and their difference."""
_MEMORY_FUNCTIONS = ("mem_get_info", "get_per_process_memory_fraction", "memory_reserved")
BACKOFF = 16.0
"""Factor by which the scale of a gradient scaler is lowered while the gradient overflows, down to about 1."""


class Build(Protocol):
    """Makes a train step; its model's gradients are left as None."""

    def __call__(self, plan: Plan, /) -> TrainStep:
        """Returns the step of a plan."""


@dataclass(frozen=True, slots=True)
class State:
    """State that a step may change besides gradients; by default none.

    Attributes:
        restore: puts everything back, ready for a step.
        differences: returns the names of everything that has changed.
    """

    restore: Callable[[], None] = lambda: None
    differences: Callable[[], Sequence[str]] = lambda: ()


STATELESS = State()


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one step.

    Attributes:
        vector: float32, over every trainable parameter. It stays on the device if there is room for it.
        most_l2: relative difference up to which another order of operations may change it.
        losses: loss of each micro batch.
    """

    vector: torch.Tensor
    most_l2: float
    losses: tuple[float, ...]


@dataclass(slots=True)
class Gradients:
    """Computes gradients of one workload, with torch's own dropout off and without updates.

    If a step changes its own state (a moving average of the weights, a counter), each micro batch starts from the same
    state. The comparison is about the gradient, not about the state.

    Attributes:
        build: makes a train step; its model's gradients are left as None.
        state: restores what a step changes besides gradients.
        modes: sets the modes of the model's modules.
        moves: names of the state that the step was seen to change. Set by `rehearse`.
        first: batch that runs before each gradient if the step changes state. State that only the first batch of a
            training sets (an initialisation from data) is then already set. None runs nothing before.
        ledger: what is known about the step's random draws.
        on_device: whether vectors stay on the device. Set with the first gradient, so that all lie in one place.
    """

    build: Build
    state: State = STATELESS
    modes: Modes = evaluating
    moves: tuple[str, ...] = ()
    first: Batch | Counted | None = None
    ledger: DrawLog = field(default_factory=DrawLog)
    on_device: bool | None = None
    _others: tuple[torch.Tensor, ...] | None = None

    def rehearse(self, part: Batch | Counted, seed: int) -> Gradient:
        """Returns the gradient of one micro batch, and records what a step draws and changes. Call it once, first."""
        before = set(self.state.differences())
        found = self.of([part], seed)
        self.ledger.learning = False
        moves = (name for name in self.state.differences() if name not in before and not name.endswith(".grad"))
        self.moves = tuple(name for name in moves if not any(part in name for part in OF_TORCH))
        return found

    @property
    def others(self) -> tuple[torch.Tensor, ...]:
        """Parameters that the user's optimizer trains and the model does not hold, such as those of a criterion."""
        if self._others is None:
            with self.build(Plan()) as step:
                known = {id(parameter) for parameter in step.draft.model.parameters()}
                groups = () if step.draft.optimizer is None else step.draft.optimizer.param_groups
                held = [parameter for group in groups for parameter in group["params"]]
            self._others = tuple(p for p in held if p.requires_grad and id(p) not in known)
        return self._others

    @property
    def moves_tensors_alone(self) -> bool:
        """Whether the step changes only parameters and buffers of the model, and no generator of the user's own."""
        with self.build(Plan()) as step:
            model = step.draft.model
            known = {f"model.{name}" for name, _ in (*model.named_parameters(), *model.named_buffers())}
        return known.issuperset(self.moves)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restores what the steps changed."""
        if self.moves or error is not None:
            self.state.restore()

    def of(
        self,
        parts: Sequence[Batch | Counted],
        seed: int,
        *,
        weights: Sequence[float] | None = None,
        plan: Plan | None = None,
        others: int | None = None,
        afresh: bool = False,
    ) -> Gradient:
        """Returns the gradient of one step.

        Args:
            parts: the micro batches of the step.
            seed: random seed. With the same seed, a sample gets the same random numbers of torch in any micro batch.
            weights: weights of the micro batches. None weights them by their samples.
            plan: the plan to apply; None applies nothing.
            others: seed of Python's and NumPy's random numbers, which then differ between micro batches. State is then
                not restored, because it includes generators of the user's own. None uses the same numbers and state for
                all micro batches.
            afresh: whether state is restored even if `others` is given.
        """
        whole = StepBatch.of(parts)
        if weights is not None:
            whole = replace(whole, weights=weights)
        run = _GradientRun(self, plan or Plan(), seed, [counted(part).samples for part in parts], others, afresh)
        if not self.moves or others is not None:
            return run.gradient(whole)
        vector, most = torch.zeros(()), ACCUMULATION_L2
        losses: list[float] = []
        for number, (part, weight) in enumerate(zip(whole.parts, whole.weights, strict=True)):
            if weight:
                one = run.gradient(StepBatch([part], [weight]), number)
                vector, most, losses = vector + one.vector, one.most_l2, [*losses, *one.losses]
        return Gradient(vector, most, tuple(losses))


@dataclass(slots=True)
class _GradientRun:
    """One computation of a gradient."""

    owner: Gradients
    plan: Plan
    seed: int
    sizes: Sequence[int]
    others: int | None
    afresh: bool

    def gradient(self, batch: StepBatch, first: int = 0) -> Gradient:
        """Returns the gradient of `batch`, whose first micro batch is number `first` of the step.

        If it overflows at a scaler's first scale, the scale is lowered, as in training.
        """
        if self.owner.moves and (self.others is None or self.afresh):
            self.owner.state.restore()
            if self.owner.first is not None:
                replace(self.owner, first=None, moves=()).of([self.owner.first], self.seed)
        with self.owner.build(self.plan) as step, self.owner.modes(step.draft.model):
            model, scaler = step.draft.model, step.draft.scaler
            step.draft.weighing = None
            while True:
                losses = self._backward(step, batch, first)
                scale = 1.0 if scaler is None else scaler.get_scale()
                found = self._vector(model).div_(scale)
                if scaler is None or scale <= 1 or bool(torch.isfinite(found).all()):
                    self._clear(model)
                    return Gradient(found, most_l2(step), losses)
                scaler.update(scale / BACKOFF)

    def _vector(self, model: nn.Module) -> torch.Tensor:
        """Returns the gradient of all parameters that are trained, on the device if it has room."""
        trained = [*(p for p in model.parameters() if p.requires_grad), *self.owner.others]
        if self.owner.on_device is None:
            self.owner.on_device = has_room(trained)
        return torch.cat([flat(p, on_host=not self.owner.on_device) for p in trained])

    def _backward(self, step: TrainStep, batch: StepBatch, first: int) -> tuple[float, ...]:
        """Accumulates the gradients of `batch` and returns its losses."""
        losses: list[float] = []
        rule, ledger = step.draft.loss, self.owner.ledger
        shared = SharedDraws(ledger) if ledger.learning or ledger.drawn else None
        numbers = iter(at + first for at, weight in enumerate(batch.weights) if weight)

        def compute(model: nn.Module, part: Batch) -> torch.Tensor:
            number = next(numbers)
            self._seed(number)
            if shared is not None:
                shared.first, shared.size = sum(self.sizes[:number]), self.sizes[number]
            loss = rule.compute(model, part)
            losses.append(float(loss.detach()))
            return loss

        self._clear(step.draft.model)
        step.draft.loss = replace(rule, compute=compute)
        try:
            with generators_restored(step.draft.device), shared or nullcontext():
                step.backward(replace(batch, parts=[fresh(part) for part in batch.parts]))
        finally:
            step.draft.loss = rule
            ledger.rewind()
        return tuple(losses)

    def _clear(self, model: nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        for parameter in self.owner.others:
            parameter.grad = None

    def _seed(self, number: int) -> None:
        seed = self.seed if self.others is None else self.others + number
        torch.manual_seed(self.seed)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        self.owner.ledger.rewind()


@contextmanager
def generators_restored(device: torch.device) -> Iterator[None]:
    """Restores the global random generators on exit."""
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), None if numpy is None else numpy.random.get_state()
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(arrays)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the L2 norm of the difference, relative to that of `other`; nan if that is zero."""
    norm = float(other.norm())
    return float((one - other).norm()) / norm if norm else math.nan


def cosine_of(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the cosine of two vectors, at most 1, which rounding may exceed."""
    return min(float(nn.functional.cosine_similarity(one, other, dim=0)), 1.0)


def has_room(trained: Sequence[torch.Tensor]) -> bool:
    """Returns whether a device has room for `VECTORS` gradients in float32; False for a device that cannot tell.

    Comparing a gradient of 124 million parameters takes 2 to 3 s on a host and milliseconds on a GPU.
    """
    needed, devices = VECTORS * 4 * sum(p.numel() for p in trained), {p.device for p in trained}
    if len(devices) != 1 or (device := next(iter(devices))).type == "cpu":
        return False
    module = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in _MEMORY_FUNCTIONS):
        return False
    free, total = module.mem_get_info(device)
    limit = module.get_per_process_memory_fraction(device) * total - module.memory_reserved(device)
    return bool(min(free, limit) >= needed)


def flat(parameter: torch.Tensor, *, on_host: bool = True) -> torch.Tensor:
    """Returns a parameter's gradient as a float32 vector on the host or its device; zeros if it has none.

    A complex number counts as two.
    """
    target = torch.device("cpu") if on_host else parameter.device
    if parameter.grad is None:
        return torch.zeros(parameter.numel() * (2 if parameter.is_complex() else 1), device=target)
    gradient = parameter.grad.detach()
    gradient = gradient if gradient.layout is torch.strided else gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient.float().flatten().to(target)
