"""The gate of other batches: checks that the gradient of a batch is that of its micro batches, accumulated.

Gradients are compared in training mode, because samples may interact in training only: in custom batch normalisation,
or in a balance term under `if self.training`. Evaluation mode is used only if randomness hides the difference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from autofit.core.units import format_names
from autofit.gates.compare import ZERO, Limits, compare, compare_means, difference
from autofit.gates.gradients import BASELINE, Gradient, Gradients, Steps
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
NAMED = 3
"""Maximum number of names of a step's own state that are shown."""
_EVENLY_CUT = 4
"""Maximum number of samples of a batch that is cut into equal parts."""
_SAME = "accumulation gives the same gradient"


def accumulation(steps: Steps, batches: Sequence[Cuttable]) -> GateVerdict:
    """Compares the gradients of batches with those of their single samples, weighted and added up.

    If a step fails with single samples (batch normalisation of vectors, `squeeze()`, a damaged sample), each batch is
    cut in two, unevenly where it has more than `_EVENLY_CUT` samples: what a loss is a mean over may be divided evenly.
    If weighting by samples does not keep the gradient, other quantities are tried that the loss may be a mean over. The
    same one must hold for all batches, each of the same number of samples, at least 2.
    """
    size = batches[0].samples
    wholes = [Counted(batch.batch, size) for batch in batches]
    try:
        return _Accumulation(steps, wholes, [batch.cut([1] * size) for batch in batches]).verdict()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the user's code: it may never have seen a batch of one
        if size == 2:
            raise
    part = size // 2 - (size > _EVENLY_CUT)
    return _Accumulation(steps, wholes, [batch.cut([part, size - part]) for batch in batches]).verdict()


@dataclass(slots=True)
class _Accumulation:
    """One comparison of whole batches with the micro batches that each is cut into."""

    steps: Steps
    wholes: Sequence[Counted]
    cuts: Sequence[Sequence[Counted]]

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
        gradients.rehearse(self.wholes[0])
        found, expected = self._judged(gradients)
        if not found.passed and gradients.moves:
            gradients.first = self.wholes[0]
            found, expected = self._judged(gradients)
        if not found.passed and found.compared:
            pairs = zip(self.wholes, expected, strict=True)
            if any(gradients.vary(whole, each.vector, each.order_l2) for whole, each in pairs):
                return None
        return found.model_copy(update={"moves": gradients.moves}) if found.compared else found

    def _judged(self, gradients: Gradients) -> tuple[GateVerdict, list[Gradient]]:
        """Returns a verdict, and the gradients of the whole batches.

        Raises:
            ValueError: the gradient of the parts alone is not finite, such as with a deviation over one sample.
        """
        wholes, parts = list[Gradient](), list[Sequence[torch.Tensor]]()
        for whole, cut in zip(self.wholes, self.cuts, strict=True):
            wholes.append(gradients.of(whole, record=True))
            parts.append(_of_parts(gradients, cut) if float(wholes[-1].vector.norm()) else ())
        expected, limits = [each.vector for each in wholes], Limits(max(each.order_l2 for each in wholes))
        if not all(float(each.norm()) for each in expected):
            return ZERO, wholes
        by_samples = [_sum(each, _shares(cut)) for each, cut in zip(parts, self.cuts, strict=True)]
        if all(bool(each.isfinite().all()) for each in expected) and not bool(torch.stack(by_samples).isfinite().all()):
            raise ValueError("the gradient of its parts is not finite")
        found = compare(by_samples, expected, limits)
        if found.passed:
            return found.model_copy(update={"reason": f"{_SAME}: {found.reason}"}), wholes
        for weighing in self._weighings():
            weights = [weights_of(weighing, [part.batch for part in cut]) for cut in self.cuts]
            weighted = [_sum(*each) for each in zip(parts, weights, strict=True)]
            again = compare(weighted, expected, limits)
            if again.passed:
                how = "added up, since the loss is a sum" if weighing.summed else f"weighted by {weighing}"
                reason = f"{_SAME} with micro batches {how}: {again.reason}; weighted by samples: {found.reason}"
                return again.model_copy(update={"reason": reason, "weighing": str(weighing)}), wholes
        moved = format_names(gradients.moves, NAMED)
        changed = f". The step changes {moved} by itself, once for each micro batch" if moved else ""
        reason = f"accumulation changes the gradient of this model: {found.reason}{changed}. {UNKNOWN}"
        return found.model_copy(update={"reason": reason}), wholes

    def _weighings(self) -> Iterator[Weighing]:
        """Yields a sum, and the quantities other than samples that the loss may be a mean over."""
        with self.steps.build(BASELINE) as step:
            ignore_index = step.draft.loss.ignore_index
        yield SUM
        yield from dict.fromkeys(each for whole in self.wholes for each in candidates(*whole, ignore_index))

    def _by_means(self, gradients: Gradients) -> GateVerdict:
        """Returns a verdict on the means of many draws: that of the first batch whose means differ."""
        for whole, cut in zip(self.wholes, self.cuts, strict=True):

            def sides(draw: int, whole: Counted = whole, cut: Sequence[Counted] = cut) -> list[torch.Tensor]:
                expected = gradients.of(whole, draw=draw, record=True).vector
                return [_sum(_of_parts(gradients, cut, draw), _shares(cut)), expected]

            found = compare_means(sides)
            if not found.passed:
                verdict = "accumulation changes the gradient of this model: " if found.compared else ""
                return found.model_copy(update={"reason": f"{verdict}{found.reason}. {UNKNOWN}"})
        return found.model_copy(update={"reason": f"{_SAME}: {found.reason}"})


def _of_parts(gradients: Gradients, cut: Sequence[Counted], draw: int | None = None) -> list[torch.Tensor]:
    """Returns the gradient of each micro batch."""
    starts = accumulate((part.samples for part in cut), initial=0)
    return [gradients.of(part, start=start, draw=draw).vector for part, start in zip(cut, starts, strict=False)]


def _shares(cut: Sequence[Counted]) -> list[float]:
    return [part.samples / sum(part.samples for part in cut) for part in cut]


def _sum(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Returns a weighted sum. A part without a weight is left out: its mean is 0 / 0."""
    found = torch.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        if weight:
            found += weight * vector
    return found


def carried(steps: Steps, batch: Counted, smaller: Counted) -> GateVerdict:
    """Looks for state of the model that has a row for each sample and changes the gradient of the next step.

    It may be a hidden state, or a queue. Row i of a batch continues row i of the batch before. Micro batches, or
    another batch size, would feed it to others. `smaller` has fewer samples than `batch`.
    """
    gradients, names = Gradients(steps, dropout_off), list[str]()
    try:
        first = gradients.of(batch, record=True)
        whole = _shapes(steps)
        again = gradients.of(batch)
        if difference(again.vector, first.vector) > first.order_l2:
            steps.restore()
            gradients.of(smaller)
            sizes, fewer = (batch.samples, smaller.samples), _shapes(steps)
            for name, shape in whole.items():
                other = fewer.get(name, shape)
                if len(shape) == len(other) and sizes in zip(shape, other, strict=True):
                    names.append(name)
    finally:
        steps.restore()
    if not names:
        return GateVerdict(passed=True, reason="no state with a row for each sample is carried from step to step")
    return failed(
        f"{format_names(names, NAMED)} has a row for each sample of a batch and is carried to the next step, so that "
        "rows would meet the state of other samples. The batch is kept"
    )


def _shapes(steps: Steps) -> dict[str, torch.Size]:
    """Returns the shape of each tensor, except parameters, that the modules of the model hold now."""
    found: dict[str, torch.Size] = {}
    with steps.build(BASELINE) as step:
        for path, module in step.draft.model.named_modules():
            plain: dict[str, Any] = {name: value for name, value in vars(module).items() if not name.startswith("_")}
            for name, value in {**plain, **module._buffers}.items():
                for number, tensor in enumerate(tensors(value) if not isinstance(value, nn.Module) else ()):
                    place = f"model.{path}.{name}[{number}]".replace("..", ".").removesuffix("[0]")
                    found[place] = tensor.shape
    return found
