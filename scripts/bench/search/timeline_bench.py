"""TimelineBench: a virtual device that charges what every action of a search costs, and ends runs at the time limit."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from autofit.core.budget import TRACE_RATIO
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import OPEN, SLOW_S, Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict, values_to_check
from scripts.bench.search import large, timelines
from scripts.bench.search.large_spaces import large_space
from scripts.bench.search.replay import TableEstimator, VirtualTime
from scripts.bench.search.timelines import Costs, Figures, Timeline

COMPILE = "compile"
WORST_STEPS, PROBE_WORST_STEPS = 3, 2
"""Whole steps on the worst batch in a proof and in a probe."""
STEPS_S, LEAST_STEPS, MOST_STEPS = 3.0, 3, 8
"""A probe times as many steps as end in `STEPS_S`, within these limits (`autofit.probing.timing`)."""
RUN_SD, STEP_SD = 0.008, 0.01
"""Standard deviations of a run and of a step, as log ratios."""
SAME_RATIO = 0.1
"""Share of a compilation that running the same plan once more takes: its code is kept."""
TRACED_ERROR = 0.04
"""Distance of the bounds of a traced peak from it, as a share."""


@dataclass(slots=True)
class _Run:
    """How far a run has come: its seconds so far, and when it is ended."""

    used_s: float
    allowed_s: float

    def takes(self, seconds: float) -> bool:
        """Adds seconds; returns whether they end in time."""
        self.used_s += seconds
        return self.used_s <= self.allowed_s


class TimelineBench:
    """A virtual device.

    Args:
        costs: seconds of the actions beside the steps.
        space: the plans that can be run.
        budget_bytes: the memory budget.
        host: whether it is a CPU.
        step_s, peak_bytes: true figures of a plan.
        failing: whether a plan fails at any size.

    Attributes:
        time: virtual clock, advanced by the seconds of each action.
        limit_s: the time budget in seconds; infinity without one.
        steps: whole optimizer steps of the baseline that ended.
    """

    def __init__(
        self,
        costs: Costs,
        space: SpaceFacts,
        budget_bytes: int,
        host: bool,
        step_s: Callable[[Plan], float],
        peak_bytes: Callable[[Plan], int],
        failing: Callable[[Plan], bool] = lambda plan: False,
    ) -> None:
        self.costs, self.space, self.budget_bytes, self.host = costs, SearchSpace(space), budget_bytes, host
        self.step_s, self.peak_bytes, self._failing = step_s, peak_bytes, failing
        self._best_per_s: float | None = None
        self.begin(0, None)

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Returns the device of a recorded timeline."""
        figures = Figures(timeline)
        return cls(
            timeline.costs, timeline.space, timeline.budget_bytes, timeline.host, figures.step_s, figures.peak_bytes
        )

    @classmethod
    def generated(cls, number: int) -> Self:
        """Returns a generated device (`timelines.generated`)."""
        name, costs, step_s = timelines.generated(number)
        device = large_space(name, number)
        facts = device.space.facts.model_copy(update={"knobs": tuple(map(timelines.expert, device.space.facts.knobs))})
        scale = step_s / device.step_time_s(device.space.baseline)
        return cls(
            costs,
            facts,
            device.budget_bytes,
            host=False,
            step_s=lambda plan: scale * device.step_time_s(plan),
            peak_bytes=device.peak_bytes,
            failing=lambda plan: bool(device.failing & set(plan.values.items())),
        )

    def begin(self, seed: int, limit_s: float | None) -> None:
        """Restarts at second 0, opens the device, and sets the time budget of the search."""
        self.time, self.limit_s = VirtualTime(), math.inf if limit_s is None else limit_s
        self._random, self._lost, self.steps = random.Random(seed), False, 0
        self._compiled: set[str] = set()
        self.time.advance(min(self.costs.open_s, self.limit_s))

    def samples_per_s(self, plan: Plan) -> float:
        """Returns the true throughput of a plan; 0 if it does not run inside the budget."""
        fits = self.peak_bytes(plan) <= self.budget_bytes and not self._failing(plan)
        return plan.global_batch_size / self.step_s(plan) if fits else 0.0

    def best_per_s(self) -> float:
        """Returns the throughput of the fastest plan that fits."""
        if self._best_per_s is None:
            space = self.space
            plans = (space.at(each, size) for each in space.combinations() for size in space.sizes)
            self._best_per_s = max(map(self.samples_per_s, (space.baseline, *plans)))
        return self._best_per_s

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Returns the outcome of a plan, and advances the clock. A run is ended at its limit or that of the search."""
        left_s = self.limit_s - self.time.seconds
        if left_s <= 0:
            return Outcome(status=Status.SKIPPED, reason="the time budget ran out")
        run = _Run(0.0, min(left_s, terms.limit_s or math.inf))
        outcome = self._outcome(plan, purpose, terms, run)
        took_s = min(run.used_s, run.allowed_s)
        self.time.advance(took_s)
        return outcome.model_copy(update={"duration_s": took_s})

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Charges a comparison of gradients, which finds that the plan keeps them."""
        if self.time.seconds + self.costs.check_s > self.limit_s:
            self.time.seconds = self.limit_s
            return Checked(passed=False, checked=False, reason="the time budget ran out")
        self.time.advance(self.costs.check_s)
        free = self.space.facts.global_batch_size is None
        values = [name for name in values_to_check(plan, self.space.baseline, free=free) if name not in known]
        return Checked(verdicts={name: GateVerdict(passed=True, reason="equal") for name in values})

    def _outcome(self, plan: Plan, purpose: Purpose, terms: RunTerms, run: _Run) -> Outcome:
        late = Outcome(status=Status.TIMED_OUT, reason="not finished in time")
        if self._lost:
            if not run.takes(self.costs.child_s):
                return late
            self._lost = False
        if self._random.random() < self.costs.lost_ratio:
            self._lost = True
            run.takes(self._random.random() * (self.costs.prepare_s + 10 * self.step_s(plan)))
            return Outcome(status=Status.CRASHED, reason="the process died") if run.takes(0.0) else late
        if not run.takes(self.costs.prepare_s):
            return late
        if self._failing(plan):
            return Outcome(status=Status.REJECTED, reason="no kernel")
        compile_s = self._compile_s(plan)
        if not run.takes(compile_s):
            return Outcome(status=Status.NOT_COMPILED, reason="compiling was not finished") if compile_s else late
        self._compiled |= {plan.key, plan.combination.key}
        return self._stepped(plan, purpose, terms, run, compile_s)

    def _stepped(self, plan: Plan, purpose: Purpose, terms: RunTerms, run: _Run, compile_s: float) -> Outcome:
        peak, true_s = self.peak_bytes(plan), self.step_s(plan) * math.exp(self._random.gauss(0, RUN_SD))
        if peak > self.budget_bytes:
            run.takes(true_s)
            return Outcome(status=Status.OUT_OF_MEMORY, reason=f"tried to allocate {peak} bytes")
        slow, first = true_s > SLOW_S, purpose is Purpose.PROOF or terms.at_once
        whole = WORST_STEPS if first else PROBE_WORST_STEPS if purpose is Purpose.PROBE else 0
        done = self._ended(run, true_s, whole)
        if plan == self.space.baseline:
            self.steps += done
        late = Outcome(status=Status.TIMED_OUT, reason="not finished in time")
        if done < whole:  # the time may end in the baseline's proof
            return (
                self._measured(plan, true_s, [true_s] * done, 0, compile_s, False) if done and terms.at_once else late
            )
        if first and slow:
            return self._measured(plan, true_s, [true_s] * WORST_STEPS, 0, compile_s, True)
        timed = 4 if purpose is Purpose.BLOCK else max(LEAST_STEPS, min(MOST_STEPS, int(STEPS_S / true_s)))
        warm = self._ended(run, true_s, 1)
        made = self._ended(run, true_s, 1 if slow and purpose is Purpose.PROBE else timed) if warm else 0
        if not made and not first:
            return late
        outcome = self._measured(plan, true_s, [true_s] * (made or WORST_STEPS), warm if made else 0, compile_s, first)
        found = outcome.measurement
        if purpose is Purpose.PROBE and not first and found is not None and terms.beaten_by(found):
            proven = self._ended(run, true_s, WORST_STEPS) == WORST_STEPS
            outcome = outcome.model_copy(update={"measurement": found.model_copy(update={"proven": proven})})
        return outcome

    def _ended(self, run: _Run, step_s: float, most: int) -> int:
        """Returns how many steps end in time; the run has then used theirs, and that of one that does not end."""
        for done in range(most):
            if not run.takes(step_s):
                return done
        return most

    def _compile_s(self, plan: Plan) -> float:
        whole_s = self.costs.compile_s.get(str(plan.values.get(COMPILE)), 0.0)
        if plan.key in self._compiled:
            return SAME_RATIO * whole_s
        return self.costs.again_ratio * whole_s if plan.combination.key in self._compiled else whole_s

    def _measured(
        self, plan: Plan, true_s: float, timed: list[float], warm: int, compile_s: float, proven: bool
    ) -> Outcome:
        peak = self.peak_bytes(plan)
        measurement = Measurement(
            step_times_s=tuple(each_s * math.exp(self._random.gauss(0, STEP_SD)) for each_s in timed),
            samples_per_step=plan.global_batch_size,
            memory=Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="simulated"),
            warmup_times_s=(true_s,) * warm,
            startup_s=compile_s,
            compile_s=compile_s or None,
            worst_steps=WORST_STEPS if proven else PROBE_WORST_STEPS,
            proven=proven,
        )
        return Outcome(status=Status.MEASURED, measurement=measurement)


class TracedPeaks(TableEstimator):
    """Estimates as traces give them: once a combination is traced, which takes its time."""

    def __init__(self, bench: TimelineBench) -> None:
        peaks = large.Figures(bench.peak_bytes, len(list(bench.space.combinations())) * len(bench.space.sizes))
        super().__init__(peaks, error_ratio=TRACED_ERROR, at_once=False)
        self._bench = bench

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Traces the combinations that are not traced yet; a trace that takes too long is ended."""
        bench = self._bench
        for key in dict.fromkeys(plan.combination.key for plan in plans):
            left_s = bench.limit_s - bench.time.seconds
            if key not in self._combinations:
                bench.time.advance(min(bench.costs.trace_s, TRACE_RATIO * max(left_s, 0.0)))
                if bench.costs.trace_s > TRACE_RATIO * left_s:
                    continue
            super().refine_all([plan for plan in plans if plan.combination.key == key])
