"""A trial log in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial


@dataclass
class MemoryLog:
    """A `TrialLog` in memory. `running` and `finished` hold what would be on disk."""

    past: Sequence[Trial] = ()
    running: dict[int, tuple[Plan, Purpose]] = field(default_factory=dict)
    finished: list[Trial] = field(default_factory=list)
    notes: dict[str, dict[str, object]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        number = len(self.past) + len(self.finished) + len(self.running)
        self.running[number] = (plan, purpose)
        return number

    def finish(self, number: int, outcome: Outcome) -> Trial:
        plan, purpose = self.running.pop(number)
        trial = Trial(number=number, plan=plan, outcome=outcome, purpose=purpose)
        self.finished.append(trial)
        return trial

    def earlier(self) -> Sequence[Trial]:
        return self.past

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)
        self.past = ()

    def note(self, name: str, value: dict[str, object]) -> None:
        self.notes[name] = value
