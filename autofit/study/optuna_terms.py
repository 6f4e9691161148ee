"""Plans and outcomes in Optuna's terms.

measured                              COMPLETE, the score; constraints memory <= 0, valid <= 0
does not fit                          COMPLETE, 0.0 (the worst score); memory > 0
cannot run, or not finite             COMPLETE, 0.0; valid > 0
refused, screened out, not compiled   PRUNED: shown separately; samplers treat it as unpromising, without a value
crashed, timed out, the user's error  FAIL: samplers ignore it

A plan that does not fit is never FAIL: samplers forget a FAIL and propose the same plan again. Both constraints are
set on every COMPLETE trial, in this order, because GPSampler identifies them by position.
"""

from collections.abc import Iterable
from typing import NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, same_value
from autofit.core.space import SpaceFacts

_LARGEST_SIZE = 2**20  # one range for every search, so that a parameter is comparable in all trials
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
    """Returns the columns for optuna-dashboard beside its own, such as the value."""
    memory = outcome.measurement and outcome.measurement.memory
    peak = {"peak_mib": round(memory.judged_bytes / 2**20, 1)} if memory else {}
    return {"status": outcome.status.value} | ({"reason": outcome.reason} if outcome.reason else {}) | peak


def distributions_of(space: SpaceFacts, trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Returns the distribution of each knob in a study that has these trials.

    Optuna keeps the choices of a parameter for all trials of a study, so the first ones stay. A value that is not among
    them is in autofit's record of the trial, and not among Optuna's parameters.
    """
    sizes = IntDistribution(1, _LARGEST_SIZE, log=True)
    found: dict[str, BaseDistribution] = {MICRO_BATCH_SIZE: sizes, ACCUMULATION_STEPS: sizes}
    for knob in space.knobs:
        whole = [value for value in knob.values if type(value) is int]
        is_range = len(whole) == len(knob.values)
        choices = IntDistribution(min(whole), max(whole)) if is_range else CategoricalDistribution(knob.values)
        found.setdefault(knob.name, choices)
    for trial in trials:
        for name, first in trial.distributions.items():
            if isinstance(first, CategoricalDistribution) or type(first) is not type(found.get(name)):
                found[name] = first
    return found


def holds(distribution: BaseDistribution | None, value: KnobValue) -> bool:
    """Returns whether Optuna can store `value` as a parameter."""
    if isinstance(distribution, IntDistribution):
        return type(value) is int and distribution.low <= value <= distribution.high
    choices = distribution.choices if isinstance(distribution, CategoricalDistribution) else ()
    return any(same_value(choice, value) for choice in choices)
