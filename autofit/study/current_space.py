"""Earlier trials in terms of the space that is searched now."""

from collections.abc import Sequence

from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import Trial


def in_terms_of(facts: SpaceFacts, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Returns the trials with a value for each knob in play, and a note on those whose plans are outside the space.

    A knob that was not in play then was left as the user has it, which is its default.
    """
    space = SearchSpace(facts)
    found = [trial.model_copy(update={"plan": _completed(trial.plan, facts)}) for trial in trials]
    foreign = [reason for trial in found if (reason := space.violation(trial.plan)) is not None]
    if not foreign:
        return found, []
    many = "1 trial is" if len(foreign) == 1 else f"{len(foreign)} trials are"
    more = "" if len(set(foreign)) == 1 else "; and other reasons"
    return found, [f"{many} of plans that this run does not search and not used: {foreign[0]}{more}"]


def _completed(plan: Plan, facts: SpaceFacts) -> Plan:
    missing = {knob.name: knob.default for knob in facts.knobs if knob.name not in plan.values}
    return plan.replace(**missing) if missing else plan
