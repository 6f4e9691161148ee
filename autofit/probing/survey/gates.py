"""Gates: check that a technique keeps this model's gradient.

Thresholds and the measurements behind them: reference/reliability.md sections 7 and 8 (bf16 autocast: relative L2 about
1e-2, cosine 0.9999). A gate is a smoke test on one batch: it says nothing about convergence.

Both sides of a comparison draw the same random numbers for the same samples (`shared_draws`) and start from the same
state. If a step draws numbers that cannot be shared, both sides are drawn many times and their means are compared
(`two_sample_statistic`). Gradients are compared in evaluation mode, or in training mode if the step fails in evaluation
mode: an object detector has no loss there, and recurrent kernels of cuDNN have no backward pass.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from autofit.core.plan import Plan
from autofit.probing.survey.conditioning import Compared, by_fixed_statistics
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
from autofit.probing.survey.two_sample_statistic import by_chance, in_means
from autofit.probing.user_errors import named_error
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import Batch

__all__ = ["Compared", "compare", "in_either_mode"]


def compare(
    build: Build, compared: Compared, batch: Batch | Counted, seed: int, state: State = STATELESS
) -> GateResult:
    """Compares the gradient of a batch under a plan with that of a reference.

    Args:
        build: makes a train step; its model's gradients are left as None.
        compared: the plan, the reference, and what may differ.
        batch: a batch that both can run.
        seed: for the random numbers of the step.
        state: restores what a step changes besides gradients.
    """
    return in_either_mode(build, state, lambda gradients: _compared(gradients, compared, batch, seed))


def in_either_mode(build: Build, state: State, judge: Callable[[Gradients], GateResult]) -> GateResult:
    """Returns the result of a comparison in evaluation mode; in training mode, without dropout, if that fails.

    Args:
        build: makes a train step; its model's gradients are left as None.
        state: restores what a step changes besides gradients.
        judge: compares what the given object computes.
    """
    try:
        return judge(Gradients(build, state))
    except Exception as error:  # noqa: BLE001  # raised by the user's code: a step that runs in training mode only
        why = named_error(error)
    found = judge(Gradients(build, state, dropout_off))
    return replace(found, reason=f"{found.reason}; compared in training mode, as evaluation mode fails: {why}")


def _compared(gradients: Gradients, compared: Compared, batch: Batch | Counted, seed: int) -> GateResult:
    with gradients:
        before = batch if compared.before is None else compared.before
        expected = gradients.rehearse(before, seed)
        if compared.reference != Plan():
            expected = gradients.of([before], seed, plan=compared.reference)
        if not float(expected.vector.norm()):
            return ZERO
        found = gradients.of([batch], seed, plan=compared.plan)
        if not bool(found.vector.isfinite().all()):
            return GateResult(False, "the gradient is not finite")
        compared = replace(compared, most=_most(gradients, compared, batch, seed, found, expected))
        error = difference(found.vector, expected.vector)
        if compared.rounded and compared.reference == Plan():
            judged = judged_as_precision("gradient", cosine_of(found.vector, expected.vector), error)
        else:
            numbers = f"relative L2 of the gradient {error:.1e} (at most {compared.most:.2g})"
            judged = GateResult(error <= compared.most, numbers)
        if judged.passed or compared.strict:
            return judged
        if by_chance(gradients, batch, seed, expected.vector, compared.most):
            means = in_means(gradients, seed, ([batch], compared.plan), ([batch], compared.reference))
            return GateResult(means.alike, means.text)
        with suppress(Exception):  # rounding cannot be measured in float32, such as for lack of memory
            return by_fixed_statistics(gradients, compared, batch, seed, expected.vector, error) or judged
        return judged


def _most(
    gradients: Gradients, compared: Compared, batch: Batch | Counted, seed: int, found: Gradient, expected: Gradient
) -> float:
    """Returns the largest difference that is allowed in any case."""
    most = max(PRECISION_L2 if compared.rounded else 0.0, found.most_l2, expected.most_l2)
    if compared.finer is None or difference(found.vector, expected.vector) <= most:
        return most
    finer = gradients.of([batch], seed, plan=compared.finer)
    return max(most, difference(expected.vector, finer.vector))
