"""Maps earlier trials to the present search space."""

from collections.abc import Sequence

from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import Trial


def in_terms_of(facts: SpaceFacts, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Returns the trials with a value for each present knob, and a note on those whose plans are outside the space.

    A knob that was not in an earlier search had its default value, which leaves the user's setting unchanged.
    """
    space = SearchSpace(facts)
    found = [trial.model_copy(update={"plan": completed(trial.plan, facts)}) for trial in trials]
    foreign = [reason for trial in found if (reason := space.violation(trial.plan)) is not None]
    if not foreign:
        return found, []
    count = "1 trial" if len(foreign) == 1 else f"{len(foreign)} trials"
    more = "" if len(set(foreign)) == 1 else "; and other reasons"
    return found, [f"{count} not used, since this run does not search these plans: {foreign[0]}{more}"]


def completed(plan: Plan, facts: SpaceFacts) -> Plan:
    """Returns a plan with the default of each present knob for which it has no value."""
    missing = {knob.name: knob.default for knob in facts.knobs if knob.name not in plan.values}
    return plan.replace(**missing) if missing else plan
