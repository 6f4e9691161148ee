"""EarlierTrials: the trials of earlier runs that are valid for this run, and notes on the others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from optuna.exceptions import UpdateFinishedTrialError

from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.study.optuna_study import OptunaStudy, StoredTrial
from autofit.study.stored import rejudged
from autofit.study.trial_start import RunContext

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


@dataclass(slots=True)
class EarlierTrials:
    """The trials of earlier runs that are valid for this run, and notes on the others.

    Attributes:
        context: facts common to all trials of this run.
        notes: notes for the user.
        trials: the trials that are valid for this run, oldest first.
        comparable: all finished trials of a comparable environment, as stored.
    """

    context: RunContext
    notes: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    comparable: list[StoredTrial] = field(default_factory=list)

    def read(self, studies: Sequence[OptunaStudy]) -> None:
        """Reads the trials of `studies`, oldest first. Trials whose process no longer exists are recorded as failed."""
        entries = [entry for study in studies for entry in self._of(study)]
        self._note_count(sum(entry is None for entry in entries), "without a readable autofit record left out")
        finished = self._settled([entry for entry in entries if entry is not None])
        comparable = self.comparable = self._comparable(finished)
        failures = _in_a_row(comparable)
        retried = 0
        for entry in comparable:
            stored, request = entry.outcome, entry.request
            if stored is None or stored.status not in _REUSED:
                continue
            if stored.status.inconclusive and len(failures[request.plan]) < IN_A_ROW:
                continue
            outcome = rejudged(stored, request.memory_bytes, self.context.memory_bytes)
            retried += outcome is None
            if outcome is not None:
                plan, purpose = request.plan, request.purpose
                self.trials.append(
                    Trial(number=entry.number, plan=plan, outcome=outcome, purpose=purpose, earlier=True)
                )
        self._note_count(retried, "that did not fit a smaller memory budget left out")
        for plan, reasons in failures.items():
            if len(reasons) >= IN_A_ROW:
                died = all(reason == DIED for reason in reasons)
                what = "its process died" if died else "it crashed or hung"
                self.notes.append(f"not tried again because {what} {len(reasons)} times: {plan}")

    def _of(self, study: OptunaStudy) -> list[StoredTrial | None]:
        """Returns the entries of a study without dropped ones, and notes why they were dropped."""
        entries, dropped = list(study.entries()), set[int]()
        for drop in study.drops():
            dropped.update(drop.trials)
            self._note_count(len(drop.trials), f"dropped on {drop.when}: {drop.reason}")
        return [entry for entry in entries if entry is None or entry.number not in dropped]

    def _settled(self, entries: Sequence[StoredTrial]) -> list[StoredTrial]:
        finished, orphans = [], 0
        for entry in entries:
            if entry.outcome is not None:
                finished.append(entry)
            elif entry.request.alive:
                where = f"process {entry.request.pid} on {entry.request.host}"
                self.notes.append(f"trial {entry.number} is running in {where}: left alone")
            else:
                outcome = Outcome(status=Status.CRASHED, reason=DIED)
                try:
                    entry.study.settle(entry.number, outcome, entry.request.memory_bytes)
                except UpdateFinishedTrialError:
                    continue  # its process finished it and ended after it was read here
                orphans += 1
                finished.append(replace(entry, outcome=outcome))
        if orphans:
            verb = "was running when its" if orphans == 1 else "were running when their"
            self.notes.append(f"{_trials(orphans)} {verb} process died: recorded as failed")
        return finished

    def _comparable(self, entries: Sequence[StoredTrial]) -> list[StoredTrial]:
        others: Counter[str] = Counter()
        comparable = []
        for entry in entries:
            differences = self.context.environment.differences(entry.environment)
            if differences:
                others["; ".join(differences)] += 1
            else:
                comparable.append(entry)
        for text, count in others.items():
            self._note_count(count, f"of another environment left out: {text}")
        return comparable

    def _note_count(self, count: int, what: str) -> None:
        if count:
            self.notes.append(f"{_trials(count)} {what}")


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def _in_a_row(entries: Sequence[StoredTrial]) -> dict[Plan, list[str]]:
    """Returns, for each plan, the reasons of its latest consecutive crashes and hangs."""
    reasons: dict[Plan, list[str]] = {}
    for entry in entries:
        found, outcome = reasons.setdefault(entry.request.plan, []), entry.outcome
        if outcome is not None and outcome.status.inconclusive:
            found.append(outcome.reason)
        elif outcome is not None and outcome.status in _REUSED and entry.request.purpose is not Purpose.BLOCK:
            found.clear()
    return reasons
