"""Which trials of earlier runs are valid for this run, in terms of its search space, and notes on the others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from autofit.core.environment import Environment
from autofit.core.outcome import DIED, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import Purpose, Trial
from autofit.study.records import StoredTrial

IN_A_ROW = 2
"""Number of consecutive crashes, hangs or dead processes after which a plan is not tried again. After fewer it is,
since the plan may not be the cause."""

_REUSED = (
    Status.MEASURED,
    Status.OVER_BUDGET,
    Status.OUT_OF_MEMORY,
    Status.OUT_OF_HOST_MEMORY,
    Status.LAUNCH_LIMIT,
    Status.NUMERIC,
    Status.CRASHED,
    Status.TIMED_OUT,
    Status.POISONED,
)
"""Outcomes that a later run reuses. The others do not depend on the plan alone, or are decided anew in each run."""


@dataclass(frozen=True, slots=True)
class EarlierTrials:
    """The trials of earlier runs that are valid for this run.

    Attributes:
        trials: the trials, oldest first.
        comparable: numbers of all trials of a comparable environment.
        notes: notes for the user on the other trials.
    """

    trials: tuple[Trial, ...] = ()
    comparable: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def without(self, plan: Plan) -> Self:
        """Returns the same without the trials of a plan."""
        gone = {trial.number for trial in self.trials if trial.plan == plan}
        return replace(
            self,
            trials=tuple(trial for trial in self.trials if trial.number not in gone),
            comparable=tuple(number for number in self.comparable if number not in gone),
        )


def usable(
    stored: Sequence[StoredTrial], environment: Environment, space: SpaceFacts, memory_bytes: int
) -> EarlierTrials:
    """Returns which finished trials, oldest first, are valid in an environment, a space and a memory budget."""
    comparable, notes = _comparable(stored, environment)
    failures = _in_a_row(comparable)
    trials, retried = list[Trial](), 0
    for each in comparable:
        if each.outcome is None or each.outcome.status not in _REUSED:
            continue
        if each.outcome.status.inconclusive and len(failures[each.start.plan]) < IN_A_ROW:
            continue
        trial = each.under(memory_bytes)
        retried += trial is None
        trials += [] if trial is None else [trial]
    if retried:
        notes.append(f"{counted_trials(retried)} that did not fit a smaller memory budget left out")
    for plan, reasons in failures.items():
        if len(reasons) >= IN_A_ROW:
            what = "its process died" if all(reason == DIED for reason in reasons) else "it crashed or hung"
            notes.append(f"not tried again because {what} {len(reasons)} times: {plan}")
    found, foreign = in_terms_of(space, trials)
    return EarlierTrials(tuple(found), tuple(each.number for each in comparable), (*notes, *foreign))


def in_terms_of(facts: SpaceFacts, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """Returns the trials with a value for each present knob, and a note on those whose plans are outside the space.

    A knob that was not in an earlier search had its default value, which leaves the user's setting unchanged.
    """
    space = SearchSpace(facts)
    found = [trial.model_copy(update={"plan": completed(trial.plan, facts)}) for trial in trials]
    foreign = [reason for trial in found if (reason := space.violation(trial.plan)) is not None]
    if not foreign:
        return found, []
    more = "" if len(set(foreign)) == 1 else "; and other reasons"
    count = counted_trials(len(foreign))
    return found, [f"{count} not used, since this run does not search these plans: {foreign[0]}{more}"]


def completed(plan: Plan, facts: SpaceFacts) -> Plan:
    """Returns a plan with the default of each present knob for which it has no value."""
    missing = {knob.name: knob.default for knob in facts.knobs if knob.name not in plan.values}
    return plan.replace(**missing) if missing else plan


def counted_trials(count: int) -> str:
    """Returns "1 trial" or "2 trials"."""
    return "1 trial" if count == 1 else f"{count} trials"


def _comparable(stored: Sequence[StoredTrial], environment: Environment) -> tuple[list[StoredTrial], list[str]]:
    """Returns the trials of comparable environments, and notes on the others."""
    others, comparable = Counter[str](), list[StoredTrial]()
    for each in stored:
        differences = environment.differences(each.start.environment)
        if differences:
            others["; ".join(differences)] += 1
        else:
            comparable.append(each)
    notes = [f"{counted_trials(count)} of another environment left out: {text}" for text, count in others.items()]
    return comparable, notes


def _in_a_row(stored: Sequence[StoredTrial]) -> dict[Plan, list[str]]:
    """Returns, for each plan, the reasons of its latest consecutive crashes and hangs."""
    reasons: dict[Plan, list[str]] = {}
    for each in stored:
        found, outcome = reasons.setdefault(each.start.plan, []), each.outcome
        if outcome is not None and outcome.status.inconclusive:
            found.append(outcome.reason)
        elif outcome is not None and outcome.status in _REUSED and each.start.purpose is not Purpose.BLOCK:
            found.clear()
    return reasons
