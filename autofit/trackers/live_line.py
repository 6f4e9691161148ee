"""Search state: how far a search is, learned from its events, as lines of a given width."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autofit.core.answer import Ratio
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import one_line
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.probing.watchdog import WAITING
from autofit.search.event import Event
from autofit.search.request import Request
from autofit.terminal import cells, cut, paint, wrapped

Forms = Sequence[str]
"""A part of the line from its longest form to its shortest."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What the progress of a search is compared with: the baseline, and the budgets, each None if it is not known.

    `clock` runs since the call began. `doing` returns the name of the step that runs now (`Watchdog.doing`).
    """

    objective: Objective = field(default_factory=Objective)
    baseline: Plan | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    max_trials: int | None = None
    clock: Clock = field(default_factory=Clock)
    doing: Callable[[], str] = field(default=lambda: "")

    @classmethod
    def of(
        cls, briefing: Briefing | None, request: Request, clock: Clock, doing: Callable[[], str] = lambda: ""
    ) -> "Yardstick":
        """Returns the yardstick of a search; `briefing` is None before the workload was looked at."""
        return cls(
            objective=request.objective,
            baseline=None if briefing is None else briefing.space.baseline,
            memory_bytes=None if briefing is None else briefing.budget.memory_bytes,
            time_s=request.time_s,
            max_trials=request.max_trials,
            clock=clock,
            doing=doing,
        )


_DOING = {
    "import": "importing your code",
    "open": "preparing the workload",
    "survey": "inspecting the workload",
    "trace": "estimating memory",
}
"""Steps that take long while no plan runs, in words."""


class SearchState:
    """What is known so far; one object per search. Lines may have colours and block characters if asked for."""

    def __init__(self, against: Yardstick, colour: bool = False, blocks: bool = False) -> None:
        self._against, self._blocks = against, blocks
        self._rows = TrialRows(against, colour)
        self._phase, self._detail = "survey", ""
        self._trials = 0
        self._answer: Plan | None = None
        self._so_far: float | None = None
        self._raced: dict[str, Ratio] = {}
        self._measured: dict[str, Measurement] = {}
        self._running: tuple[Plan, Estimate | None] | None = None

    def tell(self, event: Event) -> Callable[[int], list[str]]:
        """Learns from an event; returns what makes the lines that it leaves behind, from their width."""
        self._trials = max(self._trials, event.done)
        self._phase, self._detail = event.phase or self._phase, ""
        if event.kind not in ("waiting", "busy"):
            self._so_far = event.so_far
        if event.kind == "running" and event.plan is not None:
            self._running = (event.plan, event.estimate)
        elif event.kind == "race":
            self._detail, self._running = one_line(event.text), None
            self._raced = {each.plan.key: each.gain for each in event.standings if each.gain and each.gain.pairs}
        elif event.kind == "answer":
            self._answer = event.plan
        elif event.kind in ("stage", "waiting", "busy"):
            return self._announcement(event)
        elif event.trial is not None and event.trial.outcome.status is not Status.SKIPPED:
            return self._finished(event.trial, is_proof=event.kind == "proof")
        return lambda width: []

    def live(self, width: int) -> str:
        """Returns the line that is redrawn: phase, trials, memory, the answer so far, time left."""
        trials = "1 trial" if self._trials == 1 else f"{self._trials} trials"
        time = self._time_text()
        parts: dict[str, Forms] = {
            "phase": self._phase_forms(),
            "trials": (trials, str(self._trials), "") if self._trials or self._phase != "survey" else ("",),
            "now": self._now_forms(),
            "bar": (bar(self._share(), self._blocks), ""),
            "end": tuple(f"{each}, {time}" for each in self._answer_forms()) or (time,),
        }
        return fitted(parts, width)

    def _announcement(self, event: Event) -> Callable[[int], list[str]]:
        """Leaves a stage behind, unless the live line says the same: a single word, or the plan to be proven."""
        text = one_line(event.text)
        if event.kind == "stage":
            self._running = None
            if " " not in text or event.phase == "proof":
                return lambda width: []
        return lambda width: [cut(line, width) for line in wrapped(text, width, "autofit: ", " " * 9)]

    def _finished(self, trial: Trial, *, is_proof: bool) -> Callable[[int], list[str]]:
        self._running, is_best, ratio = None, False, None
        found = trial.outcome.measurement if trial.outcome.measured else None
        # A proof is not compared: probes and proofs are different runs, and the race has decided by then.
        if found is not None and not is_proof:
            score, baseline = self._against.objective.score, self._against.baseline
            is_best = trial.plan != baseline and all(score(found) > score(each) for each in self._measured.values())
            self._measured[trial.plan.key] = found
            reference = None if baseline is None else self._measured.get(baseline.key)
            ratio = None if reference is None else score(found) / score(reference)
        name = "proof" if is_proof else str(self._trials)
        return lambda width: self._rows.lines(trial, name, ratio, is_best, width)

    def _phase_forms(self) -> Forms:
        if self._against.doing() == WAITING:
            return "waiting for another tuner", "waiting"
        detail = self._detail
        if not detail and self._running is None:
            detail = _DOING.get(self._against.doing(), "")
        return (f"{self._phase}: {detail}", self._phase) if detail else (self._phase, self._phase)

    def _answer_forms(self) -> Forms:
        """Returns the throughput of the answer over the baseline; that of the race, with its interval, once it has one.

        Without a measured baseline, it is the throughput itself. Nothing before there is an answer.
        """
        if self._answer is None:
            return ()
        if self._answer == self._against.baseline:
            return "baseline proven", "baseline proven", "baseline"
        raced, measured = self._raced.get(self._answer.key), self._measured.get(self._answer.key)
        if raced is not None:
            value = format_ratio(raced.value)
            return f"{raced} so far", f"{value} so far", value
        if self._so_far is not None:
            value = format_ratio(self._so_far)
        elif measured is not None:
            value = f"{short_number(self._against.objective.score(measured))} {self._against.objective.unit}/s"
        else:
            return "a plan proven", "a plan proven", "proven"
        return f"{value} so far", f"{value} so far", value

    def _now_forms(self) -> Forms:
        """Returns the plan that runs and its peak: measured if it ran before, else estimated. A guess is not shown.

        Between two plans, and in the race, it is the peak of the answer so far.
        """
        if self._running is None:
            return self._peak_forms()
        plan, estimate = self._running
        name = f"now {short_plan(plan, self._against.baseline)}"
        measured = self._peak_bytes(plan)
        if not measured and (estimate is None or not estimate.is_bounded):
            return name, ""
        of = of_budget(measured or (estimate.value_bytes if estimate is not None else 0), self._against.memory_bytes)
        how, sign = ("", "") if measured else ("est. ", "~")
        return f"{name}: {how}{of}", f"now {how}{of}", f"{how}{of}", f"{sign}{compact(of)}"

    def _peak_forms(self) -> Forms:
        peak_bytes = 0 if self._answer is None else self._peak_bytes(self._answer)
        if not peak_bytes:
            return ("",)
        of = of_budget(peak_bytes, self._against.memory_bytes)
        return f"peak {of}", f"peak {of}", of, compact(of)

    def _peak_bytes(self, plan: Plan) -> int:
        """Returns the measured peak of a plan; 0 if it is not known."""
        measured = self._measured.get(plan.key)
        return 0 if measured is None else measured.memory.judged_bytes

    def _time_text(self) -> str:
        elapsed_s, limit_s = self._against.clock.elapsed_s, self._against.time_s
        return f"{short_time(elapsed_s)} elapsed" if limit_s is None else f"{short_time(limit_s - elapsed_s)} left"

    def _share(self) -> float:
        """Returns the share of the time budget, or of the trials allowed, that is used; -1 where there is neither."""
        if self._against.time_s is not None:
            return self._against.clock.elapsed_s / self._against.time_s
        if self._against.max_trials and self._phase == "search":
            return self._trials / self._against.max_trials
        return -1.0


_LAYOUTS = ((72, {"ratio": 6, "speed": 9, "peak": 10}), (52, {"ratio": 6, "peak": 10}), (0, {"ratio": 6}))
"""Columns before the plan that are shown from this width on, and their cells."""
_NAME_CELLS = 5
_LEAST_PLAN, _INDENT = 34, 4
"""Minimum number of cells for the further lines of a plan to stand below its first one, and their indent if there are
fewer. The longest knob with its value has 32 letters."""


class TrialRows:
    """Makes the rows of a search; one object per search."""

    def __init__(self, against: Yardstick, colour: bool = False) -> None:
        self._against, self._colour = against, colour
        self._shown: Mapping[str, int] = {}

    def lines(self, trial: Trial, name: str, ratio: float | None, is_best: bool, width: int) -> list[str]:
        """Returns the row of a trial, below the head of the table if that is new or has other columns now.

        `name` is its number, or "proof". `ratio` is its throughput over the baseline.
        """
        layout = next(columns for least, columns in _LAYOUTS if width >= least)
        head = [] if layout == self._shown else [cut(self._head(layout), width)]
        self._shown, outcome = layout, trial.outcome
        if outcome.measured and outcome.measurement is not None:
            colour, reason = "good" if is_best and ratio else "", ""
            figures = self._figures(outcome.measurement, name, ratio, layout)
        else:
            colour, reason = "bad", one_line(outcome.reason)
            figures = [f"{f'  {outcome.status.value}':>{sum(layout.values()) + 2 * len(layout)}}"]
        plan = short_plan(trial.plan, self._against.baseline)
        return [*head, *self._fitted([f"{name:>{_NAME_CELLS}}", *figures], colour, plan, reason, width)]

    def _head(self, layout: Mapping[str, int]) -> str:
        titles = {"ratio": "ratio", "speed": f"{self._against.objective.unit}/s", "peak": "peak"}
        figures = "".join(f"  {titles[name]:>{size}}" for name, size in layout.items())
        return f"{'':{_NAME_CELLS}}{figures}  micro batch x accumulation steps, changes"

    def _figures(self, found: Measurement, name: str, ratio: float | None, layout: Mapping[str, int]) -> list[str]:
        """Returns the cells of a trial that ran. Without room for the speed, it stands where the ratio is missing."""
        speed = "proven" if name == "proof" else short_number(self._against.objective.score(found))
        missing = "" if "speed" in layout else speed
        peak = format_bytes(found.memory.judged_bytes)
        shown = {"ratio": missing if ratio is None else format_ratio(ratio), "speed": speed, "peak": peak}
        return [f"  {shown[column]:>{size}}" for column, size in layout.items()]

    def _fitted(self, figures: Sequence[str], colour: str, plan: str, reason: str, width: int) -> list[str]:
        """Returns a row as lines of the width. Its first figure after the name is coloured after they are made."""
        begin = "".join(figures)
        column = cells(begin) + 2
        rest = " " * (column if width - column >= _LEAST_PLAN else _INDENT)
        lines = wrapped(plan + ":" * bool(reason), width, f"{begin}  ", rest)
        if reason:
            lines[-1] = f"{lines[-1]} {reason}"
        first, *others = [cut(line, width) for line in lines]
        at, end = len(figures[0]), len(figures[0]) + len(figures[1])
        return [first[:at] + paint(first[at:end], colour if self._colour else "") + first[end:], *others]


def short_plan(plan: Plan, baseline: Plan | None) -> str:
    """Returns the batch of `plan` and the knobs that differ from `baseline`, in few words on one line."""
    if plan == baseline:
        return "baseline"
    batch = f"{plan.micro_batch_size} x {plan.accumulation_steps}"
    changed = {} if baseline is None else plan.changes_from(baseline)
    changes = [f"{k}={v}" for k, v in changed.items() if k not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)]
    return one_line(", ".join([batch, *changes]))


_GAPS = ("  ", " ")
_BAR_CELLS = 10
_SHORTER = ("bar", "now", "phase", "end", "now", "trials", "end", "now", "end", "gap", "trials")
"""Parts in the order in which they become shorter, one form at a time, until the line fits. The gaps between them are
one of them. If that is not enough, "now" is left out and the others are fitted anew."""


def fitted(parts: Mapping[str, Forms], width: int) -> str:
    """Returns the parts on one line of at most `width` cells, each as long as there is room for."""
    forms: dict[str, Forms] = {**parts, "gap": _GAPS}
    at = dict.fromkeys(forms, 0)
    for name in (name for name in _SHORTER if name in forms):
        line = _joined(forms, at)
        if cells(line) <= width:
            return line
        at[name] = min(at[name] + 1, len(forms[name]) - 1)
    line = _joined(forms, at)
    if cells(line) > width and "now" in parts:
        return fitted({name: texts for name, texts in parts.items() if name != "now"}, width)
    return cut(line, width)


def _joined(forms: Mapping[str, Forms], at: Mapping[str, int]) -> str:
    now = {name: texts[at[name]] for name, texts in forms.items()}
    gap = now.pop("gap")
    return gap.join(filter(None, now.values()))


def bar(share: float, blocks: bool) -> str:
    """Returns a bar that is filled by `share`; "" for a negative one, which is unknown."""
    if share < 0:
        return ""
    filled = round(min(share, 1.0) * _BAR_CELLS)
    full, empty = ("█", "░") if blocks else ("#", "-")
    return f"{full * filled}{empty * (_BAR_CELLS - filled)}"


def of_budget(part_bytes: int, whole_bytes: int | None) -> str:
    """Returns "53.7 of 72 MiB", with the unit once if it is the same; without a budget the part alone."""
    if whole_bytes is None:
        return format_bytes(part_bytes)
    (few, unit), (many, units) = (format_bytes(count).split() for count in (part_bytes, whole_bytes))
    few, many = (f"{float(number):.4g}" if "." not in number else f"{float(number):.3g}" for number in (few, many))
    return f"{few} of {many} {units}" if unit == units else f"{few} {unit} of {many} {units}"


def compact(text: str) -> str:
    """Returns what `of_budget` gave in fewer cells: "53.7/72 MiB", or "53M/2G" for two units."""
    few, of, many = text.partition(" of ")
    return text.replace(" of ", "/") if not of or " " not in few else re.sub(r" ([KMGT])iB", r"\1", f"{few}/{many}")


def short_time(seconds: float) -> str:
    """Returns seconds as "38 s", "4:38" or "1:02:05"."""
    whole, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, whole = divmod(whole, 60)
    if hours:
        return f"{hours}:{whole:02}:{rest:02}"
    return f"{whole}:{rest:02}" if whole else f"{rest} s"
