"""The gate of a strategy that may change the gradient by rounding alone, on a batch that shows what it changes."""

from collections.abc import Callable

from autofit.core.plan import Plan
from autofit.probing.survey.either_mode import in_either_mode
from autofit.probing.survey.gate_result import ZERO, GateResult
from autofit.probing.survey.gradients import STATELESS, Build, Gradients, State, difference
from autofit.workloads.counted_batches import Counted


def rounding(
    build: Build,
    plan: Plan,
    batch: Counted,
    seed: int,
    state: State = STATELESS,
    objection: Callable[[], str] = str,
) -> GateResult:
    """Compares the gradient under `plan` with that of the baseline.

    Args:
        build: makes a train step; its model's gradients are left as None.
        plan: the values to check.
        batch: a batch on which they change what is computed (`Strategy.gate_batch`).
        seed: for the random numbers of the step.
        state: restores what a step changes besides gradients.
        objection: runs the model and returns what that shows against these values; "" if nothing.
    """
    try:
        found_against = objection()
    finally:
        state.restore()
    if found_against:
        return GateResult(False, found_against)
    return same_gradient(build, batch, batch, seed, state, plan)


def same_gradient(
    build: Build, plain: Counted, changed: Counted, seed: int, state: State = STATELESS, plan: Plan | None = None
) -> GateResult:
    """Compares the gradients of two batches of the same samples, or of a batch and the same one under a plan.

    Args:
        build: as for `rounding`.
        plain: the batch whose gradient, under the baseline, is expected.
        changed: the batch whose gradient is compared with it.
        seed: as for `rounding`.
        state: as for `rounding`.
        plan: values under which `changed` runs; None: those of the baseline, and it has more padding.
    """

    def compare(gradients: Gradients) -> GateResult:
        with gradients:
            expected = gradients.rehearse(plain, seed)
            if not float(expected.vector.norm()):
                return ZERO
            found = gradients.of([changed], seed, plan=plan)
        error, most = difference(found.vector, expected.vector), expected.most_l2
        changes = "" if error <= most else f"{plan or 'padding'} changes the gradient of this model: "
        return GateResult(error <= most, f"{changes}relative L2 of the gradient {error:.1e} (at most {most:g})")

    return in_either_mode(build, state, compare)
