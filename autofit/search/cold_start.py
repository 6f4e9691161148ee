"""Cold start: the warm-up cost that a first training pays, for a plan that finds its code in the search's cache.

Plans with the same value of a knob that must warm up share most of their code. The first of them to run compiles it;
the others find it in the compile cache of the search, and so does the same plan in its proof. None of them may look
cheaper for that, so each is charged at least the longest warm-up that a plan with its values has shown.
"""

from collections.abc import Iterable, Iterator, Sequence

from autofit.core.knob import Knob
from autofit.core.outcome import Outcome
from autofit.core.plan import KnobValue, Plan, same_value
from autofit.core.trial import Trial


def from_cold_start(outcome: Outcome, plan: Plan, earlier: Iterable[Trial], knobs: Sequence[Knob]) -> Outcome:
    """Returns `outcome` with the warm-up cost of a first training.

    Args:
        outcome: how the run of the plan ended.
        plan: the plan.
        earlier: the trials before it.
        knobs: knobs of the space.
    """
    values = dict(_warming(plan, knobs))
    found = outcome.measurement
    if not values or found is None or found.startup_s is None:
        return outcome
    measured = (trial.outcome.measurement for trial in earlier if dict(_warming(trial.plan, knobs)) == values)
    longest_s = max((m.startup_s for m in measured if m is not None and m.startup_s is not None), default=0.0)
    if longest_s <= found.startup_s:
        return outcome
    return outcome.model_copy(update={"measurement": found.model_copy(update={"startup_s": longest_s})})


def _warming(plan: Plan, knobs: Sequence[Knob]) -> Iterator[tuple[str, KnobValue]]:
    """Yields the values of a plan that must warm up."""
    for knob in knobs:
        value = plan.values.get(knob.name, knob.default)
        if knob.warm_up_s and not same_value(value, knob.default):
            yield knob.name, value
