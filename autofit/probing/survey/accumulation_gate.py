"""The gate of accumulation: checks that the gradient of a batch is that of its micro batches.

Thresholds and the measurements behind them: reference/reliability.md section 7 (1e-7 if splitting is harmless, 0.26 and
more if it is not). Gradients are compared in training mode, because samples may interact in training only: in custom
batch normalisation, or in a balance term under `if self.training`. Evaluation mode is used only if randomness hides the
difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofit.core.plan import Plan
from autofit.core.units import format_names
from autofit.probing.survey.gate_notes import NAMED
from autofit.probing.survey.gate_result import ZERO, GateResult
from autofit.probing.survey.gradients import STATELESS, Build, Gradient, Gradients, State, difference
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.survey.two_sample_statistic import by_chance, in_means
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.micro_batch_weights import SUM, Weighing
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


def accumulation(build: Build, batches: Sequence[Cuttable], seed: int, state: State = STATELESS) -> GateResult:
    """Compares the gradients of batches with those of their single samples, accumulated as `TrainStep` does.

    If the model does not accept single samples (batch normalisation of vectors, a deviation over the batch), halves of
    the batch are used. If weighting by samples does not keep the gradient, other quantities are tried that the loss may
    be a mean over. The same one must hold for all batches.

    Args:
        build: makes a train step; its model's gradients are left as None.
        batches: each of at least 2 samples.
        seed: for the random numbers that remain when the dropout of torch's own layers is off.
        state: restores what a step changes besides gradients.
    """
    found: list[GateResult] = []
    for batch in batches:
        found.append(_of_one(build, batch, seed, state, None))
        if not found[-1].passed:
            return found[-1]
    weighted = next((each for each in found if each.weighing is not None), None)
    if weighted is None or weighted.weighing is None:
        return found[0]
    for batch, each in zip(batches, found, strict=True):
        if each.weighing != weighted.weighing:
            again = _of_one(build, batch, seed, state, weighted.weighing)
            if not again.passed:
                return again
    return weighted


def _of_one(build: Build, batch: Cuttable, seed: int, state: State, weighing: Weighing | None) -> GateResult:
    """Returns the verdict on one batch; with a weighing, on that one alone."""
    size, whole = batch.samples, Counted(batch.batch, batch.samples)
    try:
        return _Accumulation(build, whole, batch.cut([1] * size), seed, state, weighing).verdict()
    except ValueError:
        if size == 2:
            raise
        halves = batch.cut([size // 2, size - size // 2])
        return _Accumulation(build, whole, halves, seed, state, weighing).verdict()


@dataclass(slots=True)
class _Accumulation:
    """One comparison of a whole batch with its parts."""

    build: Build
    batch: Counted
    parts: Sequence[Counted]
    seed: int
    state: State
    weighing: Weighing | None = None

    def verdict(self) -> GateResult:
        training = Gradients(self.build, self.state, dropout_off)
        with training:
            found = self._compared(training)
            if found is not None:
                return found
        used = Gradients(self.build, self.state)
        try:
            with used:
                found = self._compared(used)
        except Exception:  # noqa: BLE001  # a step that runs in training mode only
            used = training
        if found is None:
            with used:
                found = self._by_means(used)
        moves = tuple(dict.fromkeys((*training.moves, *used.moves)))
        return replace(found, moves=moves, evaluated=used is not training)

    def _compared(self, gradients: Gradients) -> GateResult | None:
        """Returns a verdict on one draw of the step's random numbers; None if its sides differ by chance."""
        gradients.rehearse(self.parts[0], self.seed)
        found, whole = self._judged(gradients)
        if not found.passed and gradients.moves:
            gradients.first = self.batch
            found, whole = self._judged(gradients)
        most = whole.most_l2
        if found.passed or not float(whole.vector.norm()):
            return found
        return None if by_chance(gradients, self.batch, self.seed, whole.vector, most) else found

    def _judged(self, gradients: Gradients) -> tuple[GateResult, Gradient]:
        """Returns a verdict, and the gradient of the whole batch."""
        whole = gradients.of([self.batch], self.seed)
        if not float(whole.vector.norm()):
            return ZERO, whole
        weights = None if self.weighing is None else weights_of(self.weighing, [part.batch for part in self.parts])
        parts = gradients.of(self.parts, self.seed, weights=weights)
        if bool(whole.vector.isfinite().all()) and not bool(parts.vector.isfinite().all()):
            raise ValueError("the gradient of its parts is not finite")  # such as a deviation over one sample
        passed, numbers = _judge(whole, parts)
        if passed:
            return GateResult(True, f"accumulation gives the same gradient: {numbers}", moves=gradients.moves), whole
        weighted = None if self.weighing is not None else self._weighted(gradients, whole, parts, numbers)
        return weighted or self._failed(gradients, numbers), whole

    def _failed(self, gradients: Gradients, numbers: str) -> GateResult:
        moved = format_names(gradients.moves, NAMED)
        moves = f". The step changes {moved} by itself, once for each micro batch" if moved else ""
        by = f" with micro batches weighted by {self.weighing}" if self.weighing is not None else ""
        return GateResult(False, f"accumulation changes the gradient of this model{by}: {numbers}{moves}. {UNKNOWN}")

    def _weighted(self, gradients: Gradients, whole: Gradient, parts: Gradient, before: str) -> GateResult | None:
        """Returns a passing verdict with micro batches weighted by another quantity than samples, if there is one."""
        for weighing, weights in self._weights():
            sums = sum(loss * weight for loss, weight in zip(parts.losses, weights, strict=True) if weight)
            if abs(sums - whole.losses[0]) > LOSS_RATIO * abs(whole.losses[0]):
                continue
            passed, numbers = _judge(whole, gradients.of(self.parts, self.seed, weights=weights))
            if passed:
                how = "added up, since the loss is a sum" if weighing.summed else f"weighted by {weighing}"
                reason = f"accumulation gives the same gradient with micro batches {how}: {numbers}"
                return GateResult(True, f"{reason}; weighted by samples: {before}", weighing, gradients.moves)
        return None

    def _weights(self) -> list[tuple[Weighing, Sequence[float]]]:
        """Returns a sum and the quantities that the loss may be a mean over, with their weights, none repeated."""
        with self.build(Plan()) as step:
            ignore_index = step.draft.loss.ignore_index
        found: dict[tuple[float, ...], Weighing] = {}
        for weighing in (SUM, *candidates(*self.batch, ignore_index)):
            found.setdefault(tuple(weights_of(weighing, [part.batch for part in self.parts])), weighing)
        return [(weighing, weights) for weights, weighing in found.items()]

    def _by_means(self, gradients: Gradients) -> GateResult:
        """Returns a verdict on the means of many draws."""
        found = in_means(gradients, self.seed, (self.parts, Plan()), ([self.batch], Plan()))
        if found.alike:
            return GateResult(True, f"accumulation gives the same gradient: {found.text}")
        verdict = "changes the gradient of this model" if found.sure else "could not be checked"
        return GateResult(False, f"accumulation {verdict}: {found.text}. {UNKNOWN}", checked=found.sure)


def _judge(whole: Gradient, parts: Gradient) -> tuple[bool, str]:
    """Returns whether the gradients of a batch and of its parts are equal up to rounding, with the numbers."""
    error = difference(parts.vector, whole.vector)
    ratio = float(parts.vector.norm()) / float(whole.vector.norm())
    most = whole.most_l2
    numbers = f"relative L2 of the gradient {error:.1e} (at most {most:g}), norm ratio {ratio:.4f}"
    return error <= most and abs(ratio - 1) <= most, numbers
