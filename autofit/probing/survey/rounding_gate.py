"""The gate of a strategy that may change the gradient by rounding alone, on a batch that shows what it changes."""

from collections.abc import Callable
from dataclasses import replace

from autofit.core.plan import Plan
from autofit.probing.survey.gate_result import ZERO, GateResult
from autofit.probing.survey.gradients import STATELESS, Build, Gradients, State, difference
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.user_errors import named_error
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
    try:
        return _compared(Gradients(build, state), plan, batch, seed)
    except Exception as error:  # noqa: BLE001  # raised by the user's code: a step that runs in training mode only
        why = named_error(error)
    found = _compared(Gradients(build, state, dropout_off), plan, batch, seed)
    return replace(found, reason=f"{found.reason}; compared in training mode, as evaluation mode fails: {why}")


def _compared(gradients: Gradients, plan: Plan, batch: Counted, seed: int) -> GateResult:
    with gradients:
        expected = gradients.rehearse(batch, seed)
        if not float(expected.vector.norm()):
            return ZERO
        found = gradients.of([batch], seed, plan=plan)
    error, most = difference(found.vector, expected.vector), expected.most_l2
    changes = "" if error <= most else f"{plan} changes the gradient of this model: "
    return GateResult(error <= most, f"{changes}relative L2 of the gradient {error:.1e} (at most {most:g})")
