"""PlanRunner: runs plans for a night, repeats inconclusive runs, and interleaves blocks of several plans."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.run_terms import OPEN, RunTerms
from autofit.core.trial import Purpose
from autofit.core.units import format_duration
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from autofit.search.bench import Bench
from autofit.search.no_answer import for_good
from autofit.search.race import Pairing, pair
from autofit.search.trial_runner import doubted

LIMIT_RATIO = 0.95
"""A time-out after at least this share of the time left is blamed on the time budget, not on the plan."""


class CountedBench:
    """A bench that counts what it runs.

    Attributes:
        runs: number of plans that were run: probes, blocks and proofs.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench, self.runs = bench, 0

    @property
    def briefing(self) -> Briefing:
        """Facts that are known before the first probe."""
        return self._bench.briefing

    @property
    def proof_start_s(self) -> float:
        """Seconds that a proof needs to start a fresh process; 0 if it needs none."""
        return self._bench.proof_start_s

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan."""
        self.runs += 1
        return self._bench.evaluate(plan, purpose, terms)

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns whether a plan keeps the baseline's gradient."""
        return self._bench.check(plan, known)

    def trace(self, plan: Plan) -> Trace:
        """Returns the allocations of a plan's training steps, without running them."""
        return self._bench.trace(plan)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Blocks of several plans that ran next to each other.

    Attributes:
        rates_per_s: throughput of each plan in each complete round, by the key of the plan.
        failed: outcome of the block that failed, by the key of its plan.
        early: whether the time budget ended the rounds.
    """

    rates_per_s: Mapping[str, tuple[float, ...]]
    failed: Mapping[str, Outcome] = field(default_factory=dict)
    early: bool = False

    def of(self, plan: Plan) -> tuple[float, ...]:
        """Returns the throughput of a plan in each round; () if one of its blocks failed."""
        return () if plan.key in self.failed else self.rates_per_s[plan.key]

    def pairing(self, ours: Plan, theirs: Plan) -> Pairing | None:
        """Returns the comparison of two plans; None if one of them failed, or after fewer than two rounds."""
        logs = [[math.log(rate) for rate in self.of(plan)] for plan in (ours, theirs)]
        return pair(*logs) if min(map(len, logs)) >= 2 else None


class PlanRunner:
    """Runs plans of one job.

    Args:
        bench: the workload on its device.
        objective: the throughput that is measured.
        clock: the time left; that of the bench.
        say: receives one line before each part of the work.

    Attributes:
        cut_off: plan, purpose and duration in seconds of the run that the time budget cut off; None if it cut off none.
    """

    cut_off: tuple[Plan, Purpose, float] | None = None

    def __init__(
        self, bench: CountedBench, objective: Objective, clock: Clock, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.bench, self.objective, self.clock, self.say = bench, objective, clock, say
        self._forward = True

    @property
    def baseline(self) -> Plan:
        """The baseline of the workload."""
        return self.bench.briefing.space.baseline

    def run(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan. Repeats the run once if it was inconclusive or ambiguous, in doubt, or left the device poisoned.

        Raises:
            BudgetSpent: the time budget cut the run off.
            DevicePoisoned: the device does not respond, also in a fresh process.
            KeyboardInterrupt: the user stopped the run.
        """
        outcome = self._once(plan, purpose)
        status = doubted((), plan, outcome, self.bench.briefing.budget.memory_bytes).status
        if status.inconclusive or status in (Status.AMBIGUOUS, Status.POISONED):
            outcome = self._once(plan, purpose)
        if outcome.status is Status.POISONED:
            raise for_good(outcome.reason)
        return outcome

    def rounds(
        self, plans: Sequence[Plan], count: int, enough: Callable[[Rounds], bool] = lambda so_far: False
    ) -> Rounds:
        """Runs rounds of one block of each plan, forward and backward in turn, so that drift cancels.

        A plan whose block fails does not run again. If the time budget ends a round, the rounds before it count.

        Args:
            plans: the plans, each once.
            count: number of rounds.
            enough: called after each round; whether no further round is needed.

        Raises:
            BudgetSpent: no round was complete.
            DevicePoisoned, KeyboardInterrupt: as in `run`.
        """
        rates: dict[str, list[float]] = {plan.key: [] for plan in plans}
        failed: dict[str, Outcome] = {}
        found = Rounds({})
        for done in range(count):
            try:
                self._round(plans, rates, failed)
            except BudgetSpent:
                if not done:
                    raise
                return Rounds({key: tuple(found[:done]) for key, found in rates.items()}, failed, early=True)
            found = Rounds({key: tuple(each) for key, each in rates.items()}, dict(failed))
            if len(failed) == len(plans) or enough(found):
                break
        return found

    def score(self, outcome: Outcome) -> float:
        """Returns the throughput of a measured outcome, in the unit of the objective."""
        return self.objective.score(measurement_of(outcome))

    def _round(self, plans: Sequence[Plan], rates: Mapping[str, list[float]], failed: dict[str, Outcome]) -> None:
        order = plans if self._forward else plans[::-1]
        self._forward = not self._forward
        for plan in order:
            if plan.key in failed:
                continue
            outcome = self.run(plan, Purpose.BLOCK)
            if outcome.measured:
                rates[plan.key].append(self.score(outcome))
            else:
                failed[plan.key] = outcome

    def _once(self, plan: Plan, purpose: Purpose) -> Outcome:
        patience_s, began_s = self.clock.patience_s(), self.clock.elapsed_s
        outcome = self.bench.evaluate(plan, purpose)
        took_s = self.clock.elapsed_s - began_s
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        late = outcome.status is Status.TIMED_OUT and took_s >= LIMIT_RATIO * patience_s
        if late or outcome.status is Status.SKIPPED:
            self.cut_off = (plan, purpose, took_s)
            limit = "" if self.clock.limit_s is None else f" of {format_duration(self.clock.limit_s)}"
            raise BudgetSpent(f"the time budget{limit} ended before a {purpose.value} of {plan} was finished")
        return outcome


def measurement_of(outcome: Outcome) -> Measurement:
    """Returns the measurement of a measured outcome."""
    assert outcome.measurement is not None, "an outcome 'measured' has a measurement"
    return outcome.measurement
