"""Gates: check that a technique keeps this model's gradient. They run once per search, before the first probe.

Thresholds and the measurements behind them: reference/reliability.md sections 7 and 8 (accumulation: 1e-7 if splitting
is harmless, 0.26 and more if it is not; bf16 autocast: relative L2 about 1e-2, cosine 0.9999). The precision gate is a
smoke test on one batch: it says nothing about convergence.

Both sides of a comparison draw the same random numbers for the same samples (`shared_draws`) and start from the same
state. If a step draws numbers that cannot be shared, both sides are drawn many times and their means are compared
(`chance`).

Accumulation is compared in training mode, because samples may interact in training only: in custom batch normalisation,
or in a balance term under `if self.training`. Evaluation mode is used only if randomness hides the difference. If
accumulation changes the gradient, `accumulation_causes` measures why. Precision is compared in evaluation mode, or in
training mode if the step fails in evaluation mode: an object detector has no loss there, and recurrent kernels of cuDNN
have no backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from autofit.core.plan import Plan
from autofit.probing.survey.accumulation_causes import UNKNOWN, cause
from autofit.probing.survey.conditioning import Compared, by_fixed_statistics
from autofit.probing.survey.either_mode import in_either_mode
from autofit.probing.survey.gate_result import PRECISION_L2, ZERO, GateResult, judged_as_precision
from autofit.probing.survey.gradients import (
    STATELESS,
    Build,
    Gradient,
    Gradients,
    State,
    cosine_of,
    difference,
)
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.survey.two_sample_statistic import compare
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.micro_batch_weights import SUM, Weighing
from autofit.workloads.tree import Batch
from autofit.workloads.useful_targets import candidates, weights_of

__all__ = ["STATELESS", "ZERO", "Build", "GateResult", "State", "accumulation", "precision"]

LOSS_RATIO = 1e-3
"""Maximum relative difference between the weighted sum of the parts' losses and the loss of the whole batch. A
weighting that exceeds it is not tried."""


def accumulation(build: Build, batch: Batch | Cuttable, seed: int, state: State = STATELESS) -> GateResult:
    """Compares the gradient of `batch` with that of its single samples, accumulated as `TrainStep` does.

    If the model does not accept single samples (batch normalisation of vectors, a deviation over the batch), halves of
    the batch are used. If weighting by samples does not keep the gradient, other quantities are tried that the loss may
    be a mean over.

    Args:
        build: makes a train step; its model's gradients are left as None.
        batch: at least 2 samples. A plain batch is cut along its first dimension.
        seed: for the random numbers that remain when the dropout of torch's own layers is off.
        state: restores what a step changes besides gradients.
    """
    found = Cuttable.of(batch)
    size, whole = found.samples, Counted(found.batch, found.samples)
    try:
        return _Accumulation(build, whole, found.cut([1] * size), seed, state).verdict()
    except ValueError:
        if size == 2:
            raise
        halves = found.cut([size // 2, size - size // 2])
        return _Accumulation(build, whole, halves, seed, state).verdict()


def precision(build: Build, plan: Plan, batch: Batch | Counted, seed: int, state: State = STATELESS) -> GateResult:
    """Compares the gradient under `plan` with that of the baseline, on the same batch and random numbers."""
    return in_either_mode(build, state, lambda gradients: _precision(gradients, plan, batch, seed))


def _precision(gradients: Gradients, plan: Plan, batch: Batch | Counted, seed: int) -> GateResult:
    with gradients:
        reference = gradients.rehearse(batch, seed).vector
        if not float(reference.norm()):
            return ZERO
        reduced = gradients.of([batch], seed, plan=plan).vector
        if not bool(torch.isfinite(reduced).all()):
            return GateResult(False, "the gradient is not finite")
        error = difference(reduced, reference)
        judged = judged_as_precision("gradient", cosine_of(reduced, reference), error)
        if judged.passed:
            return judged
        if not _is_random(gradients, batch, seed, reference, PRECISION_L2):
            return by_fixed_statistics(gradients, Compared(plan), batch, seed, reference, error) or judged
        found = compare(
            lambda draw: (
                gradients.of([batch], seed + draw, plan=plan, others=_SEED_STRIDE * draw).vector,
                gradients.of([batch], seed + draw, others=_SEED_STRIDE * draw).vector,
            )
        )
        return GateResult(found.alike, found.text)


@dataclass(slots=True)
class _Accumulation:
    """One comparison of a whole batch with its parts."""

    build: Build
    batch: Counted
    parts: Sequence[Counted]
    seed: int
    state: State

    def verdict(self) -> GateResult:
        training = Gradients(self.build, self.state, dropout_off)
        with training:
            found = self._compared(training)
            if found is not None:
                return self._explained(training, found)
        used = Gradients(self.build, self.state)
        try:
            with used:
                found = self._compared(used)
                found = found and self._explained(used, found)
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
        return None if _is_random(gradients, self.batch, self.seed, whole.vector, most) else found

    def _judged(self, gradients: Gradients) -> tuple[GateResult, Gradient]:
        """Returns a verdict, and the gradient of the whole batch."""
        whole = gradients.of([self.batch], self.seed)
        if not float(whole.vector.norm()):
            return ZERO, whole
        parts = gradients.of(self.parts, self.seed)
        if bool(whole.vector.isfinite().all()) and not bool(parts.vector.isfinite().all()):
            raise ValueError("the gradient of its parts is not finite")  # such as a deviation over one sample
        passed, numbers = _judge(whole, parts)
        if passed:
            return GateResult(True, f"accumulation gives the same gradient: {numbers}", moves=gradients.moves), whole
        weighted = self._weighted(gradients, whole, parts, numbers)
        return weighted or GateResult(False, f"accumulation changes the gradient of this model: {numbers}"), whole

    def _explained(self, gradients: Gradients, found: GateResult) -> GateResult:
        """Returns a verdict; a failed one with the cause, as far as it can be measured."""
        if found.passed or found is ZERO:
            return found
        moved = (
            f". The step changes {gradients.moves[0]} by itself, once for each micro batch" if gradients.moves else ""
        )
        why = cause(gradients, self.batch, self.parts, self.seed, self._sameness)
        return replace(found, reason=f"{found.reason}{moved}. {why}")

    def _sameness(self, gradients: Gradients) -> str:
        """Returns how the two sides are the same under `gradients`; "" if they are not."""
        found, _ = self._judged(gradients)
        return found.reason if found.passed else ""

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
        found = compare(
            lambda draw: (
                gradients.of(self.parts, self.seed + draw, others=_SEED_STRIDE * draw).vector,
                gradients.of([self.batch], self.seed + draw, others=_SEED_STRIDE * draw).vector,
            )
        )
        if found.alike:
            return GateResult(True, f"accumulation gives the same gradient: {found.text}")
        verdict = "changes the gradient of this model" if found.sure else "could not be checked"
        return GateResult(False, f"accumulation {verdict}: {found.text}. {UNKNOWN}", checked=found.sure)


def _is_random(gradients: Gradients, batch: Batch | Counted, seed: int, found: torch.Tensor, most: float) -> bool:
    """Returns whether two gradients of the same batch differ by chance; if so, compared sides do too."""
    shared = gradients.ledger.drawn and not gradients.ledger.unshared
    afresh = bool(gradients.moves) and gradients.moves_tensors_alone
    again = gradients.of([batch], seed if shared else seed + 1, others=_SEED_STRIDE, afresh=afresh)
    return difference(again.vector, found) > most


_SEED_STRIDE = 1000
"""Distance between the seeds of two draws, greater than the number of micro batches."""


def _judge(whole: Gradient, parts: Gradient) -> tuple[bool, str]:
    """Returns whether the gradients of a batch and of its parts are equal up to rounding, with the numbers."""
    error = difference(parts.vector, whole.vector)
    ratio = float(parts.vector.norm()) / float(whole.vector.norm())
    most = whole.most_l2
    numbers = f"relative L2 of the gradient {error:.1e} (at most {most:g}), norm ratio {ratio:.4f}"
    return error <= most and abs(ratio - 1) <= most, numbers
