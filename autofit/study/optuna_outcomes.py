"""How autofit's outcomes are stored in Optuna.

measured                              COMPLETE, the score; constraints memory <= 0, valid <= 0
does not fit                          COMPLETE, 0.0 (the worst score); memory > 0
cannot run, or not finite             COMPLETE, 0.0; valid > 0
refused, screened out, not compiled   PRUNED: shown separately; samplers treat it as unpromising, without a value
crashed, timed out, the user's error  FAIL: samplers ignore it

A plan that does not fit is never FAIL: samplers forget a FAIL and propose the same plan again. Both constraints are
set on every COMPLETE trial, in this order, because GPSampler identifies them by position (reference/ecosystem.md 3.2).
"""

from typing import NamedTuple

from optuna.trial import TrialState

from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status

_UNKNOWN_OVERSHOOT = 0.5  # an out-of-memory does not show by how much
_REFUSED = frozenset({Status.SKIPPED, Status.REJECTED, Status.NOT_COMPILED})
_INVALID = frozenset({Status.NUMERIC, Status.LAUNCH_LIMIT, Status.SHARED_MEMORY})


class OptunaResult(NamedTuple):
    """An outcome in Optuna's terms. A constraint above 0 is violated."""

    state: TrialState
    value: float | None
    constraints: dict[str, float]


def optuna_result(outcome: Outcome, objective: Objective, memory_bytes: int) -> OptunaResult:
    """Converts an outcome to Optuna's terms. See the table at the top of this file."""
    status, measurement = outcome.status, outcome.measurement
    over = None if measurement is None else measurement.memory.judged_bytes / memory_bytes - 1
    if status in _REFUSED:
        return OptunaResult(TrialState.PRUNED, None, {})
    if status is Status.MEASURED and measurement is not None and over is not None:
        return OptunaResult(TrialState.COMPLETE, objective.score(measurement), {"memory": over, "valid": -1.0})
    if status.does_not_fit:
        # After an allocator retry, a plan below the budget does not fit. It must still be infeasible in Optuna.
        over = over if over is not None and over > 0 else _UNKNOWN_OVERSHOOT
        return OptunaResult(TrialState.COMPLETE, 0.0, {"memory": over, "valid": -1.0})
    if status in _INVALID:
        return OptunaResult(TrialState.COMPLETE, 0.0, {"memory": over or 0.0, "valid": 1.0})
    return OptunaResult(TrialState.FAIL, None, {})


def columns(outcome: Outcome) -> dict[str, str | float]:
    """Returns the columns for optuna-dashboard."""
    columns: dict[str, str | float] = {"status": outcome.status.value}
    if outcome.reason:
        columns["reason"] = outcome.reason
    if outcome.measurement is not None:
        columns["samples_per_s"] = round(outcome.measurement.samples_per_s, 3)
        columns["step_time_ms"] = round(outcome.measurement.step_time_s * 1e3, 3)
        columns["peak_mib"] = round(outcome.measurement.memory.judged_bytes / 2**20, 1)
    return columns
