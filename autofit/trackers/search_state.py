"""Search state: how far a search is, as lines of a given width."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import cut, one_line
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, short_number
from autofit.search.event import Event

_HEAD = f"{'':>5}  {'gain':>6}  {{:>9}}  {'peak':>10}  micro batch x accumulation steps, changes"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What the progress of a search is told against.

    Attributes:
        objective: what is maximised.
        baseline: the user's own setting; None where it is not known, so that there is no gain.
        memory_bytes: the memory budget, or None.
        time_s: the time budget, or None.
        clock: running since the search began.
    """

    objective: Objective = field(default_factory=Objective)
    baseline: Plan | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def of(cls, briefing: Briefing, objective: Objective, time_s: float | None, clock: Clock) -> "Yardstick":
        """Returns the yardstick of a search over a workload."""
        return cls(objective, briefing.space.baseline, briefing.budget.memory_bytes, time_s, clock)


class SearchState:
    """What is known so far; one object per search."""

    def __init__(self, against: Yardstick) -> None:
        self._against = against
        self._phase = "starting"
        self._trials = 0
        self._baseline: Measurement | None = None
        self._best: Measurement | None = None
        self._begun = False

    def tell(self, event: Event) -> Callable[[int], list[str]]:
        """Learns from an event; returns what makes the lines that it leaves behind, from their width."""
        self._trials = max(self._trials, event.done)
        if event.kind in ("stage", "race"):
            self._phase = one_line(f"racing, {event.text}" if event.kind == "race" else event.text)
            line = f"autofit: {self._phase}"
            leaves = event.kind == "stage" and " " in self._phase  # a word alone is only the phase
            return lambda width: textwrap.wrap(line, width, subsequent_indent=" " * 9) if leaves else []
        if event.trial is None or event.kind not in ("trial", "proof"):
            return lambda width: []
        trial, name = event.trial, "proof" if event.kind == "proof" else str(event.done)
        self._learn(trial, event.kind)
        head = [] if self._begun else [_HEAD.format(f"{self._against.objective.unit}/s")]
        self._begun = True
        line = self._row(trial, name)
        return lambda width: [cut(text, width) for text in (*head, line)]

    def live(self, width: int) -> str:
        """Returns the line that is drawn again and again: phase, trials, best so far, peak and budget, time left."""
        trials = "1 trial" if self._trials == 1 else f"{self._trials} trials"
        short = self._phase.partition(" ")[0].rstrip(",:")
        rest = [part for part in (self._best_so_far(), self._time()) if part]
        begins = ((self._phase, trials), (short, trials), (f"{short} {self._trials}",))
        told = ["  ".join([*begin, *rest]) for begin in begins]
        return next((line for line in told if len(line) <= width), cut(told[-1], width))

    def _learn(self, trial: Trial, kind: str) -> None:
        measurement = trial.outcome.measurement
        if kind != "trial" or not trial.outcome.measured or measurement is None:
            return
        if trial.plan == self._against.baseline:
            self._baseline = measurement
        score = self._against.objective.score
        if self._best is None or score(measurement) > score(self._best):
            self._best = measurement

    def _row(self, trial: Trial, name: str) -> str:
        """Returns a trial as a row: the figures first, since the plan and the reason may be cut off."""
        outcome, own, objective = trial.outcome, self._against.baseline, self._against.objective
        plan = "your own setting" if trial.plan == own else one_line(_brief(trial.plan, own or trial.plan))
        if not outcome.measured or outcome.measurement is None:
            return f"{name:>5}  {outcome.status.value:>29}  {plan}: {one_line(outcome.reason)}"
        speed = short_number(objective.score(outcome.measurement))
        peak = format_bytes(outcome.measurement.memory.judged_bytes)
        return f"{name:>5}  {self._gain(outcome.measurement):>6}  {speed:>9}  {peak:>10}  {plan}"

    def _gain(self, measurement: Measurement) -> str:
        if self._baseline is None:
            return ""
        score = self._against.objective.score
        return f"{score(measurement) / score(self._baseline):.2f}x"

    def _best_so_far(self) -> str:
        if self._best is None:
            return ""
        objective = self._against.objective
        best = self._gain(self._best) or f"{short_number(objective.score(self._best))} {objective.unit}/s"
        peak, limit = self._best.memory.judged_bytes, self._against.memory_bytes
        if not peak or limit is None:
            return f"best {best}"
        return f"best {best} at {_of(peak, limit)}"

    def _time(self) -> str:
        elapsed_s, limit_s = self._against.clock.elapsed_s, self._against.time_s
        return _minutes(elapsed_s) if limit_s is None else f"{_minutes(max(limit_s - elapsed_s, 0.0))} left"


def _brief(plan: Plan, baseline: Plan) -> str:
    """Returns the batch of `plan` and the knobs that differ from `baseline`, in few words."""
    batch = f"{plan.micro_batch_size} x {plan.accumulation_steps}"
    changes = [
        f"{k}={v}" for k, v in plan.changes_from(baseline).items() if k not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)
    ]
    return ", ".join([batch, *changes])


def _of(part: int, whole: int) -> str:
    """Returns "53.7 of 72 MiB": the unit once, where it is the same."""
    (few, unit), (many, units) = (format_bytes(count).split() for count in (part, whole))
    few, many = (f"{float(number):.4g}" if "." not in number else f"{float(number):.3g}" for number in (few, many))
    return f"{few} of {many} {units}" if unit == units else f"{few} {unit} of {many} {units}"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
