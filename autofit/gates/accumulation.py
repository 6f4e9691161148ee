"""The gate of other batches: checks that the gradient of a batch is that of its micro batches, accumulated.

Gradients are compared in training mode, because samples may interact in training only: in custom batch normalisation,
or in a balance term under `if self.training`. Evaluation mode is used only if randomness hides the difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.core.units import format_names
from autofit.gates.chance import by_chance, in_means
from autofit.gates.compare import ZERO, Limits, compare, difference
from autofit.gates.gradients import Gradient, Gradients, Steps
from autofit.gates.modes import dropout_off
from autofit.gates.verdict import GateVerdict, failed
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.micro_batch_weights import SUM, Weighing
from autofit.workloads.tree import tensors
from autofit.workloads.useful_targets import candidates, weights_of

UNKNOWN = (
    "If the loss is a mean over tokens, a mask or class weights, put what it is a mean over into the batch, so that "
    "micro batches can be weighted by it, or average over samples. If samples of a batch interact (batch "
    "normalisation, contrastive loss), no weights help; numerics='any' allows accumulation nevertheless"
)
"""What to do if accumulation changes the gradient."""
LOSS_RATIO = 1e-3
"""Maximum relative difference between the weighted sum of the parts' losses and the loss of the whole batch. A
weighting that exceeds it is not tried."""
NAMED = 3
"""Maximum number of names of a step's own state that are shown."""
_SAME = "accumulation gives the same gradient"


def accumulation(steps: Steps, batches: Sequence[Cuttable]) -> GateVerdict:
    """Compares the gradients of batches with those of their single samples, accumulated as `TrainStep` does.

    If the model does not accept single samples (batch normalisation of vectors, a deviation over the batch), halves of
    the batch are used. If weighting by samples does not keep the gradient, other quantities are tried that the loss may
    be a mean over. The same one must hold for all batches.

    Args:
        steps: the steps, which run without the dropout of torch's own layers.
        batches: each of at least 2 samples.
    """
    found: list[GateVerdict] = []
    for batch in batches:
        found.append(_of_one(steps, batch))
        if not found[-1].passed:
            return found[-1]
    weighted = next((each for each in found if each.weighing), found[0])
    for batch, each in zip(batches, found, strict=True):
        if each.weighing != weighted.weighing:
            again = _of_one(steps, batch, Weighing.parse(weighted.weighing))
            if not again.passed:
                return again
    return weighted


def _of_one(steps: Steps, batch: Cuttable, weighing: Weighing | None = None) -> GateVerdict:
    """Returns the verdict on one batch; with a weighing, on that one alone."""
    size, whole = batch.samples, Counted(batch.batch, batch.samples)
    try:
        return _Accumulation(steps, whole, batch.cut([1] * size), weighing).verdict()
    except ValueError:
        if size == 2:
            raise
        halves = batch.cut([size // 2, size - size // 2])
        return _Accumulation(steps, whole, halves, weighing).verdict()


@dataclass(slots=True)
class _Accumulation:
    """One comparison of a whole batch with its parts."""

    steps: Steps
    batch: Counted
    parts: Sequence[Counted]
    weighing: Weighing | None

    def verdict(self) -> GateVerdict:
        training = Gradients(self.steps, dropout_off)
        with training:
            found = self._compared(training)
            if found is not None:
                return found
        used = Gradients(self.steps)
        try:
            with used:
                found = self._compared(used)
        except Exception:  # noqa: BLE001  # a step that runs in training mode only
            used = training
        if found is None:
            with used:
                found = self._by_means(used)
        moves = tuple(dict.fromkeys((*training.moves, *used.moves)))
        return found.model_copy(update={"moves": moves, "evaluated": used is not training})

    def _compared(self, gradients: Gradients) -> GateVerdict | None:
        """Returns a verdict on one draw of the step's random numbers; None if its sides differ by chance."""
        gradients.rehearse(self.parts[0])
        found, whole = self._judged(gradients)
        if not found.passed and gradients.moves:
            gradients.first = self.batch
            found, whole = self._judged(gradients)
        if found.passed or not float(whole.vector.norm()):
            return found
        return None if by_chance(gradients, self.batch, whole.vector, whole.order_l2) else found

    def _judged(self, gradients: Gradients) -> tuple[GateVerdict, Gradient]:
        """Returns a verdict, and the gradient of the whole batch.

        Raises:
            ValueError: the gradient of the parts alone is not finite, such as with a deviation over one sample.
        """
        whole = gradients.of([self.batch])
        if not float(whole.vector.norm()):
            return ZERO, whole
        weights = None if self.weighing is None else self._weights_of(self.weighing)
        parts = gradients.of(self.parts, weights=weights)
        if bool(whole.vector.isfinite().all()) and not bool(parts.vector.isfinite().all()):
            raise ValueError("the gradient of its parts is not finite")
        found = compare([parts.vector], [whole.vector], Limits(whole.order_l2))
        moves, numbers = {"moves": gradients.moves}, found.reason
        if found.passed:
            return found.model_copy(update={**moves, "reason": f"{_SAME}: {numbers}"}), whole
        weighted = None if self.weighing is not None else self._weighted(gradients, whole, parts, numbers)
        if weighted is not None:
            return weighted.model_copy(update=moves), whole
        moved = format_names(gradients.moves, NAMED)
        changed = f". The step changes {moved} by itself, once for each micro batch" if moved else ""
        by = f" with micro batches weighted by {self.weighing}" if self.weighing is not None else ""
        reason = f"accumulation changes the gradient of this model{by}: {numbers}{changed}. {UNKNOWN}"
        return found.model_copy(update={**moves, "reason": reason}), whole

    def _weighted(self, gradients: Gradients, whole: Gradient, parts: Gradient, before: str) -> GateVerdict | None:
        """Returns a passing verdict with micro batches weighted by another quantity than samples, if there is one."""
        with self.steps.build(Plan()) as step:
            ignore_index = step.draft.loss.ignore_index
        tried: dict[tuple[float, ...], Weighing] = {}
        for weighing in (SUM, *candidates(*self.batch, ignore_index)):
            tried.setdefault(tuple(self._weights_of(weighing)), weighing)
        for weights, weighing in tried.items():
            sums = sum(loss * weight for loss, weight in zip(parts.losses, weights, strict=True) if weight)
            if abs(sums - whole.losses[0]) > LOSS_RATIO * abs(whole.losses[0]):
                continue
            again = gradients.of(self.parts, weights=weights)
            found = compare([again.vector], [whole.vector], Limits(whole.order_l2))
            if found.passed:
                how = "added up, since the loss is a sum" if weighing.summed else f"weighted by {weighing}"
                reason = f"{_SAME} with micro batches {how}: {found.reason}; weighted by samples: {before}"
                return GateVerdict(passed=True, reason=reason, weighing=str(weighing))
        return None

    def _weights_of(self, weighing: Weighing) -> list[float]:
        return weights_of(weighing, [part.batch for part in self.parts])

    def _by_means(self, gradients: Gradients) -> GateVerdict:
        """Returns a verdict on the means of many draws."""
        found = in_means(gradients, (self.parts, Plan()), ([self.batch], Plan()))
        if found.passed:
            return found.model_copy(update={"reason": f"{_SAME}: {found.reason}"})
        verdict = "accumulation changes the gradient of this model: " if found.compared else ""
        return found.model_copy(update={"reason": f"{verdict}{found.reason}. {UNKNOWN}"})


def carried(steps: Steps, batch: Counted, smaller: Counted) -> GateVerdict:
    """Looks for state of the model that has a row for each sample and changes the gradient of the next step.

    It may be a hidden state, or a queue. Row i of a batch continues row i of the batch before. Micro batches, or
    another batch size, would feed it to others. `smaller` has fewer samples than `batch`.
    """
    gradients, names = Gradients(steps, dropout_off), list[str]()
    try:
        first = gradients.of([batch])
        whole = _shapes(steps)
        again = gradients.of([batch])
        if difference(again.vector, first.vector) > first.order_l2:
            steps.restore()
            gradients.of([smaller])
            sizes, fewer = (batch.samples, smaller.samples), _shapes(steps)
            names = [name for name, shape in whole.items() if sizes in _differing(shape, fewer.get(name, shape))]
    finally:
        steps.restore()
    if not names:
        return GateVerdict(passed=True, reason="no state with a row for each sample is carried from step to step")
    return failed(
        f"{format_names(names, NAMED)} has a row for each sample of a batch and is carried to the next step, so that "
        "rows would meet the state of other samples. The batch is kept"
    )


def _differing(one: torch.Size, other: torch.Size) -> list[tuple[int, int]]:
    return [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]] if len(one) == len(other) else []


def _shapes(steps: Steps) -> dict[str, torch.Size]:
    """Returns the shape of each tensor, except parameters, that the modules of the model hold now."""
    with steps.build(Plan()) as step:
        return dict(_held(step.draft.model))


def _held(model: nn.Module) -> Iterator[tuple[str, torch.Size]]:
    for path, module in model.named_modules():
        plain: dict[str, Any] = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for name, value in {**plain, **module._buffers}.items():
            for number, tensor in enumerate(tensors(value) if not isinstance(value, nn.Module) else ()):
                yield f"model.{path}.{name}[{number}]".replace("..", ".").removesuffix("[0]"), tensor.shape
