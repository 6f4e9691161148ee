"""Gradients of one step that can be compared: they use the same modes, random numbers and initial state."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.compare import difference, order_l2
from autofit.gates.draws import DrawLog, SharedDraws
from autofit.gates.modes import Modes, evaluating
from autofit.torch_internals import is_traceable_wrapper_subclass
from autofit.workloads.batch_store import fresh
from autofit.workloads.counted_batches import Counted
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.tree import Batch

BASELINE = Plan()
"""Nothing is applied."""
OF_LIBRARIES = ("__dynamo_disable", "_torchdynamo", "_forward_hooks[", "_hooks_installed")
"""Parts of the names of what torch and transformers set on functions and modules at the first call only."""
BACKOFF = 16.0
"""Factor by which the scale of a gradient scaler is lowered while the gradient overflows, down to about 1."""
SEED_STRIDE = 1000
"""Distance between the seeds of two draws, greater than the number of samples."""
WIDTH = 2**16
"""Length of a sketch. It keeps distances to about 1 / sqrt(WIDTH), which is 0.4 %."""
_PIECE = 2**20
"""Number of elements that are folded at once."""


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
    """The gradient of one micro batch.

    Attributes:
        vector: sketch of the gradient of every parameter that is trained, as `sketch` makes it.
        order_l2: relative difference up to which another order of operations may change it.
    """

    vector: torch.Tensor
    order_l2: float


@dataclass(slots=True)
class Gradients:
    """Computes gradients of one workload, without torch's own dropout and without updates.

    If a step changes its own state (a moving average of the weights, a counter), each micro batch starts from the same.

    Attributes:
        moves: names of the state that the step was seen to change. Set by `rehearse`.
        moves_tensors_alone: whether these are parameters and buffers of the model, and no generator. Set by `rehearse`.
        first: batch that runs before each gradient if the step changes state. State that only the first batch of a
            training sets (an initialisation from data) is then already set. None runs nothing before.
        ledger: what is known about the step's random draws.
    """

    steps: Steps
    modes: Modes = evaluating
    moves: tuple[str, ...] = ()
    moves_tensors_alone: bool = False
    first: Counted | None = None
    ledger: DrawLog = field(default_factory=DrawLog)
    _others: tuple[torch.Tensor, ...] | None = None

    def rehearse(self, part: Counted) -> Gradient:
        """Returns the gradient of one micro batch, and notes what a step draws and changes. Call it once, first."""
        before = set(self.steps.differences())
        found = self.of(part, record=True)
        moves = (name for name in self.steps.differences() if name not in before and not name.endswith(".grad"))
        self.moves = tuple(name for name in moves if not any(part in name for part in OF_LIBRARIES))
        if self.moves:
            with self.steps.build(BASELINE) as step:
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
        self, part: Counted, plan: Plan = BASELINE, *, start: int = 0, draw: int | None = None, record: bool = False
    ) -> Gradient:
        """Returns the gradient of one micro batch under a plan. `start` is the number of its first sample in the step.

        Without `draw`, a sample gets the same random numbers of torch in any micro batch; those of Python and NumPy are
        the same for all micro batches. `draw` is the number of a draw of what samples cannot share; state is then not
        restored if generators are part of it. With `record`, other micro batches get the random numbers of this one.

        If the gradient overflows at a scaler's first scale, the scale is lowered, as in training.
        """
        if self.moves and (draw is None or self.moves_tensors_alone):
            self.steps.restore()
            if self.first is not None:
                replace(self, first=None, moves=()).of(self.first)
        with self.steps.build(plan) as step, self.modes(step.draft.model):
            scaler = step.draft.scaler
            step.draft.weighing = None
            while True:
                self._clear(step.draft.model)
                self._backward(step, part, start, draw, record)
                trained = [*(p for p in step.draft.model.parameters() if p.requires_grad), *self.others]
                scale = 1.0 if scaler is None else scaler.get_scale()
                found = sketch(trained).div_(scale)
                if scaler is None or scale <= 1 or bool(found.isfinite().all()):
                    self._clear(step.draft.model)
                    return Gradient(found, order_l2(step))
                scaler.update(scale / BACKOFF)

    def vary(self, batch: Counted, found: torch.Tensor, most_l2: float) -> bool:
        """Returns whether another draw changes the gradient of a batch by more than `most_l2` from `found`."""
        return difference(self.of(batch, draw=1).vector, found) > most_l2

    @property
    def others(self) -> tuple[torch.Tensor, ...]:
        """Parameters that the user's optimizer trains and the model does not hold, such as those of a criterion."""
        if self._others is None:
            with self.steps.build(BASELINE) as step:
                known = {id(parameter) for parameter in step.draft.model.parameters()}
                groups = () if step.draft.optimizer is None else step.draft.optimizer.param_groups
                held = [parameter for group in groups for parameter in group["params"]]
            self._others = tuple(p for p in held if p.requires_grad and id(p) not in known)
        return self._others

    def _backward(self, step: TrainStep, part: Counted, start: int, draw: int | None, record: bool) -> None:
        rule, ledger, seed = step.draft.loss, self.ledger, self.steps.seed
        shared = SharedDraws(ledger, start, part.samples, record=record) if record or ledger.drawn else None

        def compute(model: nn.Module, batch: Batch) -> torch.Tensor:
            if draw is None:
                seed_all(seed)
            else:
                seed_all(seed if ledger.drawn and not ledger.unshared else seed + draw, SEED_STRIDE * draw + start)
            ledger.rewind()
            return rule.compute(model, batch)

        step.draft.loss = replace(rule, compute=compute)
        try:
            with generators_restored(step.draft.device), shared or nullcontext():
                step.backward(StepBatch([fresh(part.batch)], [1.0]))
            if shared is not None:
                shared.ended()
        finally:
            step.draft.loss = rule
            ledger.rewind()

    def _clear(self, model: nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        for parameter in self.others:
            parameter.grad = None


def sketch(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the gradients of parameters as one float32 vector on the host, folded to `WIDTH` with random signs.

    Lengths and distances are kept to 1 / sqrt(WIDTH), and exactly if there are fewer elements. A gradient is folded
    where it lies, since a copy of 124 million elements takes 2 to 3 s. The signs depend on the kind of device.
    Parameters without a gradient count as zeros, and a complex number as two.
    """
    folded = {p.device: torch.zeros(WIDTH, device=p.device) for p in parameters}
    signs, at = {device: _signs(device) for device in folded}, 0
    for parameter in parameters:
        if parameter.grad is not None:
            _fold(parameter.grad.detach(), at, signs[parameter.device], folded[parameter.device])
        at += parameter.numel() * (2 if parameter.is_complex() else 1)
    return sum((each.cpu() for each in folded.values()), torch.zeros(WIDTH))[:at]


def _signs(device: torch.device) -> torch.Tensor:
    """Returns the signs of two pieces, which are alike, so that a piece can take its signs from any place."""
    drawn = torch.randint(0, 2, (_PIECE,), generator=torch.Generator(device).manual_seed(0), device=device)
    return (drawn * 2 - 1).float().repeat(2)


def _fold(gradient: torch.Tensor, at: int, signs: torch.Tensor, folded: torch.Tensor) -> None:
    """Adds the elements, with random signs, to a sketch. The first has index `at` modulo `WIDTH`."""
    if is_traceable_wrapper_subclass(gradient):  # one of several ranks has a part, and all gather it together
        gradient = cast("Any", gradient).full_tensor()
    gradient = gradient if gradient.layout is torch.strided else gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    for piece in torch.split(gradient.float().flatten(), _PIECE):
        place, before = random.Random(at).randrange(_PIECE), at % WIDTH
        signed = piece * signs[place : place + len(piece)]
        first, rest = signed[: WIDTH - before], signed[WIDTH - before :]
        rows = len(rest) // WIDTH * WIDTH
        folded[before : before + len(first)] += first
        if len(rest):
            folded += rest[:rows].view(-1, WIDTH).sum(0)
            folded[: len(rest) - rows] += rest[rows:]
        at += len(piece)


def seed_all(seed: int, others: int | None = None) -> None:
    """Seeds torch's generators, and those of Python and NumPy with `others`; None: with the same number."""
    torch.manual_seed(seed)
    others = seed if others is None else others
    random.seed(others)
    np.random.seed(others % 2**32)


@contextmanager
def generators_restored(device: torch.device) -> Iterator[None]:
    """Restores the global random generators on exit."""
    python, arrays = random.getstate(), np.random.get_state()
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
