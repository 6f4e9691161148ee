"""Search state: how far a search is, learned from its events, as lines of a given width."""

from collections.abc import Callable, Iterator

from autofit.core.answer import Ratio
from autofit.core.budget import Clock
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.probing.watchdog import WAITING
from autofit.search.evidence import SearchEvidence
from autofit.search.request import Event
from autofit.terminal import bar, cells, cut, paint, wrapped

_DOING = {
    "import": "importing your code",
    "open": "preparing the workload",
    "survey": "inspecting the workload",
    "trace": "estimating memory",
}
"""Steps that take long while no plan runs, in words."""


_LEVELS, _BAR_CELLS = 6, 10
"""Forms of the live line, from the longest to the shortest, and cells of its bar."""
_MOST_LETTERS = 240
"""Maximum number of characters of a finished trial that are shown: reasons come from the user's code."""


class SearchState:
    """What is known so far; one object per search.

    Args:
        clock: runs since the call began.
        time_s: the time budget; None without one.
        doing: returns the name of the step that runs now (`Watchdog.doing`).

    Attributes:
        colour: whether lines have colours.
        blocks: whether lines have block characters.
    """

    def __init__(self, clock: Clock, time_s: float | None = None, doing: Callable[[], str] = lambda: "") -> None:
        self._clock, self._time_s, self._doing = clock, time_s, doing
        self.colour = self.blocks = False
        self._asked: SearchEvidence | None = None
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
        self._asked = event.asked or self._asked
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
            return self._finished(event.text, event.trial, is_proof=event.kind == "proof")
        return lambda width: []

    def live(self, width: int) -> str:
        """Returns the line that is redrawn: phase, trials, memory, the answer so far, time left."""
        line = ""
        for level in range(_LEVELS):
            line = "  ".join(filter(None, self._parts(level)))
            if cells(line) <= width:
                break
        return cut(line, width)

    def _parts(self, level: int) -> Iterator[str]:
        """Yields the parts of the live line. From level to level they are shorter, and some are left out."""
        yield self._phase_text(level)
        if level < 4 and (self._trials or self._phase != "survey"):
            yield str(self._trials) if level >= 2 else "1 trial" if self._trials == 1 else f"{self._trials} trials"
        if level < 5:
            yield self._memory_text(level)
        if level == 0:
            share = self._share()
            yield "" if share is None else bar(share, _BAR_CELLS, self.blocks, "░" if self.blocks else "-")
        elapsed_s, limit_s = self._clock.elapsed_s, self._time_s
        left = f"{short_time(elapsed_s)} elapsed" if limit_s is None else f"{short_time(limit_s - elapsed_s)} left"
        yield ", ".join(filter(None, [self._answer_text(level), left]))

    def _announcement(self, event: Event) -> Callable[[int], list[str]]:
        """Leaves a stage behind, unless the live line says the same: a single word, or the plan to be proven."""
        text = one_line(event.text)
        if event.kind == "stage":
            self._running = None
            if " " not in text or event.phase == "proof":
                return lambda width: []
        return lambda width: [cut(line, width) for line in wrapped(text, width, "autofit: ", " " * 9)]

    def _finished(self, text: str, trial: Trial, *, is_proof: bool) -> Callable[[int], list[str]]:
        """Leaves a finished trial behind: its number, its throughput over the baseline, and its text.

        A proof is not compared: probes and proofs are different runs, and the race has decided by then.
        """
        self._running, shown, colour = None, "", ""
        found = trial.outcome.measurement if trial.outcome.measured else None
        if found is None:
            shown, colour = "failed", "bad"
        elif not is_proof and self._asked is not None:
            score, baseline = self._asked.objective.score, self._asked.baseline
            is_best = trial.plan != baseline and all(score(found) > score(each) for each in self._measured.values())
            self._measured[trial.plan.key] = found
            if (reference := self._measured.get(baseline.key)) is not None:
                shown, colour = format_ratio(score(found) / score(reference)), "good" if is_best else ""
        head = f"{'proof' if is_proof else self._trials:>5}  {shown:>6}"
        said, painted = one_line(text), head[:7] + paint(head[7:], colour if self.colour else "")
        said = said if len(said) <= _MOST_LETTERS else f"{said[: _MOST_LETTERS - 2]}.."

        def lines(width: int) -> list[str]:
            first, *rest = [cut(line, width) for line in wrapped(said, width, f"{head}  ", " " * 7)]
            return [painted + first[len(head) :], *rest]

        return lines

    def _phase_text(self, level: int) -> str:
        if self._doing() == WAITING:
            return "waiting" if level else "waiting for another tuner"
        detail = self._detail
        if not detail and self._running is None:
            detail = _DOING.get(self._doing(), "")
        return f"{self._phase}: {detail}" if detail and not level else self._phase

    def _answer_text(self, level: int) -> str:
        """Returns the throughput of the answer over the baseline; that of the race, with its interval, once it has one.

        Without a measured baseline, it is the throughput itself. Nothing before there is an answer.
        """
        if self._answer is None or self._asked is None:
            return ""
        if self._answer == self._asked.baseline:
            return "baseline proven" if level < 3 else "baseline"
        raced, measured = self._raced.get(self._answer.key), self._measured.get(self._answer.key)
        if raced is not None:
            value = format_ratio(raced.value) if level else str(raced)
        elif self._so_far is not None:
            value = format_ratio(self._so_far)
        elif measured is not None:
            value = f"{short_number(self._asked.objective.score(measured))} {self._asked.objective.unit}/s"
        else:
            return "a plan proven" if level < 3 else "proven"
        return f"{value} so far" if level < 3 else value

    def _memory_text(self, level: int) -> str:
        """Returns the plan that runs and its peak: measured if it ran before, else estimated. A guess is not shown.

        Between two plans, and in the race, it is the peak of the answer so far.
        """
        if self._asked is None:
            return ""
        how, is_short = "", level >= 2
        if self._running is None:
            name, peak_bytes = "peak ", 0 if self._answer is None else self._peak_bytes(self._answer)
        else:
            plan, estimate = self._running
            name = "now " if level else f"now {short_plan(plan, self._asked.baseline)}: "
            peak_bytes = self._peak_bytes(plan)
            if not peak_bytes and estimate is not None and estimate.is_bounded:
                peak_bytes, how = estimate.value_bytes, "~" if is_short else "est. "
        if not peak_bytes:
            return "" if level or self._running is None else name.removesuffix(": ")
        of = of_budget(peak_bytes, self._asked.budget.memory_bytes, short=is_short)
        return f"{how}{of}" if is_short else f"{name}{how}{of}"

    def _peak_bytes(self, plan: Plan) -> int:
        """Returns the measured peak of a plan; 0 if it is not known."""
        measured = self._measured.get(plan.key)
        return 0 if measured is None else measured.memory.judged_bytes

    def _share(self) -> float | None:
        """Returns the share of the time budget, or of the trials allowed, that is used; None where there is neither."""
        if self._time_s is not None:
            return self._clock.elapsed_s / self._time_s
        most = None if self._asked is None else self._asked.budget.max_trials
        return self._trials / most if most and self._phase == "search" else None


def short_plan(plan: Plan, baseline: Plan) -> str:
    """Returns the batch of `plan` and the knobs that differ from `baseline`, in few words on one line."""
    if plan == baseline:
        return "baseline"
    batch = f"{plan.micro_batch_size} x {plan.accumulation_steps}"
    changes = [f"{k}={v}" for k, v in plan.combination.changes_from(baseline.combination).items()]
    return one_line(", ".join([batch, *changes]))


def of_budget(part_bytes: int, whole_bytes: int, *, short: bool = False) -> str:
    """Returns "53.7 of 72 MiB", with the unit once if it is the same; if short, "53.7/72 MiB", or "53M/2G"."""
    (few, unit), (many, units) = (format_bytes(count).split() for count in (part_bytes, whole_bytes))
    few, many = (f"{float(number):.4g}" if "." not in number else f"{float(number):.3g}" for number in (few, many))
    if unit == units:
        return f"{few}{'/' if short else ' of '}{many} {units}"
    return f"{few}{unit[0]}/{many}{units[0]}" if short else f"{few} {unit} of {many} {units}"


def short_time(seconds: float) -> str:
    """Returns seconds as "38 s", "4:38" or "1:02:05"."""
    whole, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, whole = divmod(whole, 60)
    if hours:
        return f"{hours}:{whole:02}:{rest:02}"
    return f"{whole}:{rest:02}" if whole else f"{rest} s"
