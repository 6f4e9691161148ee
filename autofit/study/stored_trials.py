"""What a study stores of a trial, and which stored trials are valid for a later run. Loads no Optuna."""

import os
import socket
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from pydantic import AwareDatetime

from autofit import locks
from autofit.core.environment import Environment
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.strict import Strict
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STUDY_SCHEMA = "autofit.study/1"
PREFIX = "autofit."
SCHEMA, DROPPED = f"{PREFIX}schema", f"{PREFIX}dropped"
"""Attributes of a study. The second is a list of drops: the numbers of their trials, the reason, and the UTC time."""
START, OUTCOME = f"{PREFIX}start", f"{PREFIX}outcome"
"""Attributes of a trial."""
STORED_LETTERS = 30_000
"""Maximum number of characters of one text. Escaped, it stays below the 64 KiB that a text has in MySQL."""
_LONGEST_TRIAL = timedelta(hours=24)
IN_A_ROW = 2
"""Number of consecutive crashes, hangs or dead processes after which a plan is not tried again. After fewer it is,
since the plan may not be the cause."""
_REUSED = frozenset({
    Status.MEASURED, Status.OVER_BUDGET, Status.OUT_OF_MEMORY, Status.OUT_OF_HOST_MEMORY, Status.LAUNCH_LIMIT,
    Status.NUMERIC, Status.CRASHED, Status.TIMED_OUT, Status.POISONED,
})  # fmt: skip
"""Outcomes that a later run reuses. The others do not depend on the plan alone, or are decided anew in each run."""


class TrialStart(Strict):
    """What is recorded of a trial when it starts.

    Attributes:
        memory_bytes: memory budget by which it is judged.
        pid: process that runs it.
        process_start: when that process began, which differs for a later process with the same pid.
    """

    plan: Plan
    purpose: Purpose
    environment: Environment
    memory_bytes: int
    host: str
    pid: int
    process_start: int
    started: AwareDatetime

    @classmethod
    def now(cls, plan: Plan, purpose: Purpose, environment: Environment, memory_bytes: int) -> Self:
        """Returns the record of a trial that this process starts now."""
        pid = os.getpid()
        process = {"host": socket.gethostname(), "pid": pid, "process_start": _start_of(pid)}
        what = {"plan": plan, "purpose": purpose, "environment": environment, "memory_bytes": memory_bytes}
        return cls.model_validate({**what, **process, "started": datetime.now(UTC)})

    @property
    def alive(self) -> bool:
        """Whether the process of this trial may still run. Those of other machines may, for a day."""
        if self.host != socket.gethostname():
            return datetime.now(UTC) - self.started < _LONGEST_TRIAL
        return _start_of(self.pid) == self.process_start


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial as stored. Without an outcome it runs, or its process died."""

    number: int
    start: TrialStart
    outcome: Outcome | None

    @classmethod
    def of(cls, number: int, attributes: Mapping[str, Any], *, finished: bool) -> Self | None:
        """Returns the trial with these attributes; None without a record of autofit, or with one that is damaged."""
        try:
            start = TrialStart.model_validate_json(_unsealed(attributes[START]))
            outcome = Outcome.model_validate_json(_unsealed(attributes[OUTCOME])) if finished else None
        except (LookupError, ValueError):  # pydantic's ValidationError is a ValueError
            return None
        return cls(number, start, outcome)

    def under(self, memory_bytes: int, *, earlier: bool = True) -> Trial | None:
        """Returns the trial judged by a memory budget; None if its outcome under that is not known."""
        outcome = None if self.outcome is None else _rejudged(self.outcome, self.start.memory_bytes, memory_bytes)
        if outcome is None:
            return None
        plan, purpose = self.start.plan, self.start.purpose
        return Trial(number=self.number, plan=plan, outcome=outcome, purpose=purpose, earlier=earlier)


def sealed(record: str) -> str:
    """Returns the text in which a record, as JSON, is stored: with a checksum, since a journal has none."""
    return f"{record} {zlib.crc32(record.encode()):08x}"


def _unsealed(text: str) -> str:
    """Returns the record in a stored text. Raises ValueError if it was changed. Older records have no checksum."""
    record = text.rpartition(" ")[0]
    if text.endswith("}"):
        return text
    if sealed(record) != text:
        raise ValueError("the checksum is another one")
    return record


def readable(trials: Sequence["FrozenTrial"], notes: Mapping[str, Any]) -> tuple[list[StoredTrial], int]:
    """Returns the trials of a study, and the number of those without a readable record. Dropped ones are left out.

    `notes` are the attributes of the study.
    """
    dropped = {number for drop in notes.get(DROPPED, ()) for number in drop["trials"]}
    known = [each for each in trials if each.number not in dropped]
    read = [StoredTrial.of(each.number, each.user_attrs, finished=each.state.is_finished()) for each in known]
    found = [each for each in read if each is not None]
    return found, len(read) - len(found)


def comparable(stored: Sequence[StoredTrial], environment: Environment, notes: list[str]) -> list[StoredTrial]:
    """Returns the trials of comparable environments; adds notes on the others."""
    differences = [environment.differences(each.start.environment) for each in stored]
    others = Counter("; ".join(texts) for texts in differences if texts)
    notes += [f"{counted_trials(count)} of another environment left out: {text}" for text, count in others.items()]
    return [each for each, texts in zip(stored, differences, strict=True) if not texts]


def usable(stored: Sequence[StoredTrial], facts: SpaceFacts, memory_bytes: int, notes: list[str]) -> list[Trial]:
    """Returns which finished trials are valid for this run, with a value for each present knob; notes on the others.

    `stored` are trials of a comparable environment, oldest first. A plan outside the space stays among the trials.
    """
    failures, found, retried = _in_a_row(stored), list[Trial](), 0
    for each in stored:
        if each.outcome is None or each.outcome.status not in _REUSED:
            continue
        if each.outcome.status.inconclusive and len(failures[each.start.plan]) < IN_A_ROW:
            continue
        if (trial := each.under(memory_bytes)) is None:
            retried += 1
        else:
            found.append(trial.model_copy(update={"plan": completed(trial.plan, facts)}))
    if retried:
        notes.append(f"{counted_trials(retried)} that did not fit a smaller memory budget left out")
    for plan, reasons in failures.items():
        if len(reasons) >= IN_A_ROW:
            what = "its process died" if set(reasons) == {DIED} else "it crashed or hung"
            notes.append(f"not tried again because {what} {len(reasons)} times: {plan}")
    notes += _foreign(found, SearchSpace(facts))
    return found


def _foreign(trials: Sequence[Trial], space: SearchSpace) -> list[str]:
    """Returns a note on the trials whose plans are outside a space."""
    reasons = [reason for trial in trials if (reason := space.violation(trial.plan)) is not None]
    if not reasons:
        return []
    more = "" if len(set(reasons)) == 1 else "; and other reasons"
    return [f"{counted_trials(len(reasons))} not used, since this run does not search these plans: {reasons[0]}{more}"]


def completed(plan: Plan, facts: SpaceFacts) -> Plan:
    """Returns a plan with the default of each present knob for which it has no value.

    A knob that was not in an earlier search had its default value, which leaves the user's setting unchanged.
    """
    missing = {knob.name: knob.default for knob in facts.knobs if knob.name not in plan.values}
    return plan.replace(**missing) if missing else plan


def counted_trials(count: int) -> str:
    """Returns "1 trial" or "2 trials"."""
    return "1 trial" if count == 1 else f"{count} trials"


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


def _rejudged(outcome: Outcome, then_bytes: int, now_bytes: int) -> Outcome | None:
    """Returns an outcome under the budget `then_bytes` as judged by `now_bytes`, or None if that is unknown."""
    ran = outcome.status in (Status.MEASURED, Status.OVER_BUDGET)
    memory = outcome.measurement.memory if ran and outcome.measurement is not None else None
    if memory is not None and memory.judged_bytes > now_bytes:
        peak, budget = format_bytes(memory.judged_bytes), format_bytes(now_bytes)
        reason = f"its peak of {peak} ({memory.judged_by}) is above the memory budget of {budget}"
        return outcome.model_copy(update={"status": Status.OVER_BUDGET, "reason": reason})
    if not outcome.status.does_not_fit:
        return outcome
    # The times of a plan that was short of memory are not valid with more memory.
    if memory is None or memory.allocator_retries or memory.swallowed_ooms:
        return None if now_bytes > then_bytes else outcome
    return outcome.model_copy(update={"status": Status.MEASURED, "reason": ""})


def _start_of(pid: int) -> int:
    """Returns when a process began, in clock ticks after boot: -1 if it has ended, 0 where there is no /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except PermissionError:
        pass  # it exists and belongs to another user
    fields = locks.stat_of(pid)
    return 0 if not fields else -1 if fields[0] in "ZX" else int(fields[19])
