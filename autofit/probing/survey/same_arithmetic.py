"""Same arithmetic: checks that two plans differ by the order of operations alone."""

from contextlib import suppress
from dataclasses import replace

from autofit.core.plan import Plan
from autofit.probing.survey.conditioning import Compared, by_fixed_statistics
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import STATELESS, Build, Gradients, State, difference
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.survey.rounding_limits import REDUCED_L2
from autofit.workloads.counted_batches import Counted

_SEED = 0


def same_arithmetic(
    build: Build,
    plan: Plan,
    reference: Plan,
    batch: Counted,
    state: State = STATELESS,
    *,
    rounded: bool = False,
    finer: Plan | None = None,
    plain: Plan | None = None,
) -> GateResult:
    """Compares the gradients of two plans that should differ by the order of operations alone.

    Args:
        build: makes a train step; its model's gradients are left as None.
        plan: the plan to check.
        reference: the same plan without the technique.
        batch: a batch that both can run.
        state: restores what a step changes besides gradients.
        rounded: whether both compute in reduced precision, so that another order changes more digits.
        finer: the reference without techniques that round so coarsely that they change the result; None if it has none.
            Another order may then change as much of the gradient as they do: the last digits of an operand decide which
            way it is rounded. On 40 blocks, compiling changed 5.3e-2 of a float8 gradient, and float8 itself 7.0e-2.
        plain: the reference in float32, to see whether rounding changes the gradient altogether (`conditioning`); None
            if it is already.
    """
    compared = Compared(plan, reference, plain or reference, rounded=rounded)
    with suppress(Exception):  # a model without a loss in evaluation mode
        return _same_arithmetic(Gradients(build, state), compared, batch, finer)
    return _same_arithmetic(Gradients(build, state, dropout_off), compared, batch, finer)


def _same_arithmetic(gradients: Gradients, compared: Compared, batch: Counted, finer: Plan | None) -> GateResult:
    with gradients:
        gradients.rehearse(batch, _SEED)
        expected = gradients.of([batch], _SEED, plan=compared.reference)
        if not float(expected.vector.norm()):
            return GateResult(True, "the gradient is zero on this batch")
        found = gradients.of([batch], _SEED, plan=compared.plan)
        error = difference(found.vector, expected.vector)
        most = REDUCED_L2 if compared.rounded else expected.most_l2
        if finer is not None and error > most:
            most = max(most, difference(expected.vector, gradients.of([batch], _SEED, plan=finer).vector))
        if error <= most or not bool(found.vector.isfinite().all()):
            return _judged(error, most)
        with suppress(Exception):  # rounding cannot be measured in float32, such as for lack of memory
            compared = replace(compared, most=most)
            fixed = by_fixed_statistics(gradients, compared, batch, _SEED, expected.vector, error)
            return fixed or _judged(error, most)
    return _judged(error, most)


def _judged(error: float, most: float) -> GateResult:
    return GateResult(error <= most, f"relative L2 of the gradient {error:.1e} (at most {most:.2g})")
