"""Gradients of one step that can be compared: they use the same modes, random numbers and initial state."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import TracebackType
from typing import Self

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.compare import ORDER_L2, order_l2
from autofit.gates.draws import DrawLog, SharedDraws
from autofit.gates.modes import Modes, evaluating
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
SEED_STRIDE = 1000
"""Distance between the seeds of two draws, greater than the number of micro batches."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The train steps of one workload, as gates run them. By default a step changes nothing besides gradients.

    Attributes:
        build: makes the step of a plan; its model's gradients are left as None.
        seed: seed of the random numbers.
        restore: puts everything back that a step changes besides gradients, ready for a step.
        differences: returns the names of everything that has changed.
    """

    build: Callable[[Plan], TrainStep]
    seed: int = 0
    restore: Callable[[], None] = lambda: None
    differences: Callable[[], Sequence[str]] = lambda: ()


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one step.

    Attributes:
        vector: float32, one dimension, over every parameter that is trained. It stays on the device if there is room.
        order_l2: relative difference up to which another order of operations may change it.
        losses: loss of each micro batch that has a weight.
    """

    vector: torch.Tensor
    order_l2: float
    losses: tuple[float, ...]


@dataclass(slots=True)
class Gradients:
    """Computes gradients of one workload, without torch's own dropout and without updates.

    If a step changes its own state (a moving average of the weights, a counter), each micro batch starts from the same
    state. The comparison is about the gradient, not about the state.

    Attributes:
        steps: the steps.
        modes: sets the modes of the model's modules.
        moves: names of the state that the step was seen to change. Set by `rehearse`.
        moves_tensors_alone: whether these are parameters and buffers of the model, and no generator. Set by `rehearse`.
        first: batch that runs before each gradient if the step changes state. State that only the first batch of a
            training sets (an initialisation from data) is then already set. None runs nothing before.
        ledger: what is known about the step's random draws.
        on_device: whether vectors stay on the device. Set with the first gradient, so that all lie in one place.
    """

    steps: Steps
    modes: Modes = evaluating
    moves: tuple[str, ...] = ()
    moves_tensors_alone: bool = False
    first: Batch | Counted | None = None
    ledger: DrawLog = field(default_factory=DrawLog)
    on_device: bool | None = None
    _others: tuple[torch.Tensor, ...] | None = None

    def rehearse(self, part: Batch | Counted) -> Gradient:
        """Returns the gradient of one micro batch, and records what a step draws and changes. Call it once, first."""
        before = set(self.steps.differences())
        found = self.of([part])
        self.ledger.learning = False
        moves = (name for name in self.steps.differences() if name not in before and not name.endswith(".grad"))
        self.moves = tuple(name for name in moves if not any(part in name for part in OF_TORCH))
        if self.moves:
            with self.steps.build(Plan()) as step:
                model = step.draft.model
                known = {f"model.{name}" for name, _ in (*model.named_parameters(), *model.named_buffers())}
            self.moves_tensors_alone = known.issuperset(self.moves)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restores what the steps changed."""
        if self.moves or error is not None:
            self.steps.restore()

    def of(
        self,
        parts: Sequence[Batch | Counted],
        plan: Plan | None = None,
        *,
        weights: Sequence[float] | None = None,
        draw: int | None = None,
    ) -> Gradient:
        """Returns the gradient of one step.

        Args:
            parts: the micro batches of the step.
            plan: the plan to apply; None applies nothing.
            weights: weights of the micro batches. None weights them by their samples.
            draw: None: a sample gets the same random numbers of torch in any micro batch; those of Python and NumPy,
                and the state, are the same for all micro batches. A number: one draw of the numbers that samples cannot
                share. State is then not restored between micro batches, nor before if generators are part of it.
        """
        whole = StepBatch.of(parts)
        if weights is not None:
            whole = replace(whole, weights=weights)
        starts = tuple(accumulate((counted(part).samples for part in parts), initial=0))
        run = _GradientRun(self, plan or Plan(), starts, draw)
        if not self.moves or draw is not None:
            return run.gradient(whole)
        vector, most, losses = torch.zeros(()), ORDER_L2, list[float]()
        for number, (part, weight) in enumerate(zip(whole.parts, whole.weights, strict=True)):
            if weight:
                one = run.gradient(StepBatch([part], [weight]), number)
                vector, most, losses = vector + one.vector, one.order_l2, [*losses, *one.losses]
        return Gradient(vector, most, tuple(losses))

    @property
    def others(self) -> tuple[torch.Tensor, ...]:
        """Parameters that the user's optimizer trains and the model does not hold, such as those of a criterion."""
        if self._others is None:
            with self.steps.build(Plan()) as step:
                known = {id(parameter) for parameter in step.draft.model.parameters()}
                groups = () if step.draft.optimizer is None else step.draft.optimizer.param_groups
                held = [parameter for group in groups for parameter in group["params"]]
            self._others = tuple(p for p in held if p.requires_grad and id(p) not in known)
        return self._others


@dataclass(slots=True)
class _GradientRun:
    """One computation of a gradient. `starts` has the number of the first sample of each micro batch, and the total."""

    owner: Gradients
    plan: Plan
    starts: Sequence[int]
    draw: int | None

    def gradient(self, batch: StepBatch, first: int = 0) -> Gradient:
        """Returns the gradient of `batch`, whose first micro batch is number `first` of the step.

        If it overflows at a scaler's first scale, the scale is lowered, as in training.
        """
        owner = self.owner
        if owner.moves and (self.draw is None or owner.moves_tensors_alone):
            owner.steps.restore()
            if owner.first is not None:
                replace(owner, first=None, moves=()).of([owner.first])
        with owner.steps.build(self.plan) as step, owner.modes(step.draft.model):
            scaler = step.draft.scaler
            step.draft.weighing = None
            while True:
                losses = self._backward(step, batch, first)
                scale = 1.0 if scaler is None else scaler.get_scale()
                found = self._vector(step.draft.model).div_(scale)
                if scaler is None or scale <= 1 or bool(torch.isfinite(found).all()):
                    self._clear(step.draft.model)
                    return Gradient(found, order_l2(step), losses)
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
                shared.first, shared.size = self.starts[number], self.starts[number + 1] - self.starts[number]
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

    def _seed(self, number: int) -> None:
        seed, ledger = self.owner.steps.seed, self.owner.ledger
        if self.draw is None:
            seed_all(seed)
        else:
            shared = ledger.drawn and not ledger.unshared
            seed_all(seed if shared else seed + self.draw, SEED_STRIDE * self.draw + number)
        ledger.rewind()

    def _clear(self, model: nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        for parameter in self.owner.others:
            parameter.grad = None


def seed_all(seed: int, others: int | None = None) -> None:
    """Seeds torch's generators, and those of Python and NumPy with `others`; None: with the same number."""
    torch.manual_seed(seed)
    others = seed if others is None else others
    random.seed(others)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(others % 2**32)


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
