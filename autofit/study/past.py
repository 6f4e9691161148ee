"""Past: what earlier runs left in a study, and what of it holds for this run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from optuna.exceptions import UpdateFinishedTrialError

from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Trial
from autofit.core.units import format_bytes
from autofit.study.book import Book, Entry
from autofit.study.request import Context

DIED = "the process died while this plan ran"
DEATHS_ALLOWED = 1
"""A plan that was running when its process died is tried once more: the cause may have been another one."""

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
"""What a later run takes over. The others are not facts about the plan, or are decided afresh by each run."""


@dataclass(slots=True)
class Past:
    """What earlier runs left: their trials that hold for this run, and notes on the others."""

    context: Context
    notes: list[str] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)

    def read(self, books: Sequence[Book]) -> None:
        """Reads the trials of `books`, oldest first, and settles those whose process is gone."""
        entries = [entry for book in books for entry in book.entries()]
        self._tell_count(sum(entry is None for entry in entries), "without a readable record of autofit left out")
        finished = self._settled([entry for entry in entries if entry is not None])
        comparable = self._comparable(finished)
        deaths = Counter(entry.request.plan for entry in comparable if _died(entry.outcome))
        again = 0
        for entry in comparable:
            told, request = entry.outcome, entry.request
            if told is None or told.status not in _REUSED:
                continue
            if _died(told) and deaths[request.plan] <= DEATHS_ALLOWED:
                continue
            outcome = _rejudged(told, request.memory_bytes, self.context.memory_bytes)
            again += outcome is None
            if outcome is not None:
                plan, purpose = request.plan, request.purpose
                self.trials.append(
                    Trial(number=entry.number, plan=plan, outcome=outcome, purpose=purpose, earlier=True)
                )
        self._tell_count(again, "left out that did not fit a smaller memory budget")
        for plan, count in deaths.items():
            if count > DEATHS_ALLOWED:
                self.notes.append(f"not tried again, its process died {count} times: {plan}")

    def _settled(self, entries: Sequence[Entry]) -> list[Entry]:
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
                    entry.book.settle(entry.number, outcome, entry.request.memory_bytes)
                except UpdateFinishedTrialError:
                    continue  # its process finished it, and then ended, after it was read here
                orphans += 1
                finished.append(replace(entry, outcome=outcome))
        if orphans:
            verb = "was running when its" if orphans == 1 else "were running when their"
            self.notes.append(f"{_trials(orphans)} {verb} process died: told as failed")
        return finished

    def _comparable(self, entries: Sequence[Entry]) -> list[Entry]:
        others: Counter[str] = Counter()
        comparable = []
        for entry in entries:
            differences = self.context.environment.differences(entry.environment)
            if differences:
                others["; ".join(differences)] += 1
            else:
                comparable.append(entry)
        for text, count in others.items():
            self._tell_count(count, f"of another environment left out: {text}")
        return comparable

    def _tell_count(self, count: int, what: str) -> None:
        if count:
            self.notes.append(f"{_trials(count)} {what}")


def _trials(count: int) -> str:
    return "1 trial" if count == 1 else f"{count} trials"


def _died(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status is Status.CRASHED and outcome.reason == DIED


def _rejudged(outcome: Outcome, then_bytes: int, now_bytes: int) -> Outcome | None:
    """Returns what an outcome under the budget `then_bytes` is under `now_bytes`, or None when that is not known."""
    ran = outcome.status in (Status.MEASURED, Status.OVER_BUDGET)
    memory = outcome.measurement.memory if ran and outcome.measurement is not None else None
    if memory is not None and memory.judged_bytes > now_bytes:
        peak, budget = format_bytes(memory.judged_bytes), format_bytes(now_bytes)
        reason = f"its peak of {peak} ({memory.judged_by}) is above the memory budget of {budget}"
        return outcome.model_copy(update={"status": Status.OVER_BUDGET, "reason": reason})
    if not outcome.status.does_not_fit:
        return outcome
    # A plan that was short of memory has no times that hold under more of it.
    if memory is None or memory.allocator_retries or memory.swallowed_ooms:
        return None if now_bytes > then_bytes else outcome
    return outcome.model_copy(update={"status": Status.MEASURED, "reason": ""})
