"""Search state: how far a search is, learned from its events, as lines of a given width."""

from collections.abc import Callable

from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.recommendation import Ratio
from autofit.core.trial import Trial
from autofit.core.units import format_ratio, short_number
from autofit.probing.watchdog import WAITING
from autofit.search.event import Event
from autofit.terminal import cut, wrapped
from autofit.trackers.live_text import Forms, bar, compact, fitted, of_budget, short_time
from autofit.trackers.trial_rows import TrialRows, short_plan
from autofit.trackers.yardstick import Yardstick

_DOING = {
    "import": "importing your code",
    "open": "preparing the workload",
    "survey": "inspecting the workload",
    "trace": "estimating memory",
}
"""Steps that take long while no plan runs, in words."""


class SearchState:
    """What is known so far; one object per search.

    Args:
        against: what progress is compared with.
        colour: whether the lines may have colours.
        blocks: whether they may have block characters.
    """

    def __init__(self, against: Yardstick, colour: bool = False, blocks: bool = False) -> None:
        self._against, self._blocks = against, blocks
        self._rows = TrialRows(against, colour)
        self._phase, self._detail = "survey", ""
        self._trials = 0
        self._baseline: Measurement | None = None
        self._best: Measurement | None = None
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
        parts: dict[str, Forms] = {
            "phase": self._phase_forms(),
            "trials": (trials, str(self._trials), "") if self._trials or self._phase != "survey" else ("",),
            "now": self._now_forms(),
            "bar": (bar(self._share(), self._blocks), ""),
            "end": self._end_forms(),
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
        self._running = None
        measurement = trial.outcome.measurement if trial.outcome.measured else None
        is_best = measurement is not None and not is_proof and self._learn(trial.plan, measurement)
        # A proof is not compared: probes and proofs are different runs, and the race has decided by then.
        ratio = None if measurement is None or is_proof else self._ratio(measurement)
        name = "proof" if is_proof else str(self._trials)
        return lambda width: self._rows.lines(trial, name, ratio, is_best, width)

    def _learn(self, plan: Plan, measurement: Measurement) -> bool:
        """Learns from the probe of a plan, and returns whether it is the fastest so far and not the baseline."""
        self._measured[plan.key] = measurement
        if plan == self._against.baseline:
            self._baseline = measurement
        score = self._against.objective.score
        if self._best is not None and score(measurement) <= score(self._best):
            return False
        self._best = measurement
        return plan != self._against.baseline

    def _ratio(self, measurement: Measurement) -> float | None:
        if self._baseline is None:
            return None
        score = self._against.objective.score
        return score(measurement) / score(self._baseline)

    def _phase_forms(self) -> Forms:
        if self._against.doing() == WAITING:
            return "waiting for another tuner", "waiting"
        detail = self._detail
        if not detail and self._running is None:
            detail = _DOING.get(self._against.doing(), "")
        return (f"{self._phase}: {detail}", self._phase) if detail else (self._phase, self._phase)

    def _end_forms(self) -> Forms:
        """Returns the answer so far and the time left."""
        answer, time = self._answer_forms(), self._time_forms()
        if not answer:
            return time
        return (*(f"{answer[0]}, {each}" for each in time), *(f"{each}, {time[-1]}" for each in answer[1:]))

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

    def _time_forms(self) -> Forms:
        elapsed_s, limit_s = self._against.clock.elapsed_s, self._against.time_s
        if limit_s is not None:
            return (f"{short_time(limit_s - elapsed_s)} left",)
        return (f"{short_time(elapsed_s)} elapsed",)

    def _share(self) -> float:
        """Returns the share of the time budget, or of the trials allowed, that is used; -1 where there is neither."""
        if self._against.time_s is not None:
            return self._against.clock.elapsed_s / self._against.time_s
        if self._against.max_trials and self._phase == "search":
            return self._trials / self._against.max_trials
        return -1.0
