"""TableBench: answers probes, blocks and proofs from a recorded table, with recorded noise and cost."""

import math
import random
from collections.abc import Mapping
from statistics import fmean

from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.statistics import clipped
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict
from scripts.bench.search.replay.noise import Bursts, Drift, Runs
from scripts.bench.search.replay.table import Entry, Table

PROOF_STEPS = 5
"""Minimum number of timed steps in a proof."""
WHOLE_STEPS = 3
"""Number of steps by which a probe continues to its proof."""
DROPPED_STEPS = 1
"""Number of steps at the beginning of a block that run but are not timed."""


class VirtualTime:
    """A clock that advances only by `advance`; for `Clock(now=...)`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Returns the seconds so far."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Advances the clock."""
        self.seconds += seconds


class TableBench:
    """A virtual device from a complete table; a search takes its method `evaluate`.

    Memory and status of a plan are always those of its entry. Step times are drawn, see the module `noise`. A probe or
    a proof takes as long as the recorded probe, and a block as long as its steps. A block fails as often as the
    recorded blocks of its plan.

    Args:
        table: has an entry for each plan of its grid.
        seed: decides the random draws, and the moment of the recorded drift at which the search begins.
        block_ratio: fixed cost of a block, as a share of its plan's probe: building the step takes time too.

    Attributes:
        time: virtual clock, advanced by the duration of each run.

    Raises:
        UsageError: the table is not complete, and a search may ask for any plan.
    """

    def __init__(self, table: Table, seed: int = 0, block_ratio: float = 0.0) -> None:
        if missing := table.missing():
            raise UsageError(
                f"the table {table.name!r} lacks {len(missing)} of {len(table.plans)} plans, {missing[0]} among them; "
                "a search may ask for any. Record the rest."
            )
        self.time = VirtualTime()
        self._entries = {entry.plan.key: entry for entry in table.entries}
        self._drift = Drift(table)
        self._runs: dict[str, Runs] = {}
        self._held_up_s, self._block_ratio = 0.0, block_ratio
        self.rewind(seed)

    def rewind(self, seed: int, bursts: Bursts | None = None) -> None:
        """Restarts with another seed at second 0; cheaper than another bench of the same table.

        Args:
            seed: as in the constructor.
            bursts: slow the runs in addition to the recorded noise; None for a machine that is not shared.
        """
        self.time.seconds = 0.0
        self._bursts = bursts
        self._chance = random.Random(seed)
        self._began_s = self._chance.uniform(0, 2 * self._drift.length_s)

    def throughputs(self, objective: Objective) -> dict[str, float]:
        """Returns the mean throughput over many drawn runs without drift, by the key of each measured plan.

        A race converges to this figure. A score from the raw blocks (`Entry.score`) also contains the drift at the time
        of their recording, and the median of few blocks differs from the mean. As in a race, outliers are clipped.
        """
        return {
            key: math.exp(self._log_throughput(entry, objective))
            for key, entry in self._entries.items() if entry.outcome.measured
        }  # fmt: skip

    def _log_throughput(self, entry: Entry, objective: Objective) -> float:
        ran = self._runs_of(entry).ran
        paces = (entry.units(block, objective) / block.step_time_s for block in ran)
        return fmean(clipped([math.log(pace) + self._drift(at.at_s) for pace, at in zip(paces, ran, strict=True)]))

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Returns the outcome of a plan, and advances the clock by its duration.

        A probe that its terms let continue is proven; its duration in the table is that of a whole probe.

        Raises:
            UsageError: the plan is not in the table's grid.
        """
        entry = self._entries.get(plan.key)
        if entry is None:
            raise UsageError(f"the table has no entry for {plan}: it is not in its grid. Search the table's own space.")
        if not entry.outcome.measured:
            self.time.advance(entry.outcome.duration_s)
            return entry.outcome
        if purpose is Purpose.BLOCK:
            return self._block(entry)
        outcome = self._probe(entry, purpose)
        return gone_on(outcome, terms, self.time) if purpose is Purpose.PROBE else outcome

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns that a plan keeps the gradient: a table holds no plan that does not."""
        return Checked()

    def _probe(self, entry: Entry, purpose: Purpose) -> Outcome:
        measurement = entry.outcome.measurement
        assert measurement is not None, "an outcome 'measured' carries its measurement"
        steps, cycle = len(measurement.step_times_s), measurement.cycle
        if purpose is Purpose.PROOF:
            steps = max(steps, -(-PROOF_STEPS // cycle) * cycle)
        outcome = self._drawn(entry, steps, may_fail=False)
        self.time.advance(entry.outcome.duration_s + self._held_up_s)
        return outcome

    def _block(self, entry: Entry) -> Outcome:
        steps = max((len(block.step_times_s) for block in entry.blocks), default=0) or PROOF_STEPS - DROPPED_STEPS
        outcome = self._drawn(entry, steps, may_fail=True)
        measurement = outcome.measurement
        spent = self._block_ratio * entry.outcome.duration_s
        if measurement is not None:
            spent += sum(measurement.step_times_s) * (measurement.timed_steps + DROPPED_STEPS) / steps
        self.time.advance(spent)
        return outcome.model_copy(update={"duration_s": spent})

    def _runs_of(self, entry: Entry) -> Runs:
        key = entry.plan.key
        if key not in self._runs:
            self._runs[key] = Runs.of(entry)
        return self._runs[key]

    def _drawn(self, entry: Entry, steps: int, may_fail: bool) -> Outcome:
        runs = self._runs_of(entry)
        block = runs.draw(self._chance, may_fail)
        if block.reason:
            return _failure(block.reason)
        now = self._drift(self._drift.moment(self._began_s + self.time.seconds))
        alone = runs.step_times_s(block, steps, now - self._drift(block.at_s), self._chance)
        times = alone if self._bursts is None else self._bursts.slowed(alone, self.time.seconds)
        self._held_up_s = sum(times) - sum(alone)
        changes = {"step_times_s": times, "steps_per_window": block.steps_per_window, "cycle": block.cycle}
        changes["tokens_per_step"] = block.tokens_per_step
        assert entry.outcome.measurement is not None, "only a measured entry is drawn from"
        return entry.outcome.model_copy(update={"measurement": entry.outcome.measurement.model_copy(update=changes)})


def gone_on(outcome: Outcome, terms: RunTerms, time: VirtualTime) -> Outcome:
    """Returns the outcome of a probe; if the terms ask for it, it is proven, which takes `WHOLE_STEPS` more."""
    found = outcome.measurement
    if not outcome.measured or found is None or not terms.beaten_by(found):
        return outcome
    time.advance(WHOLE_STEPS * found.step_time_s)
    proof = {"proven": True, "worst_steps": max(found.worst_steps, WHOLE_STEPS)}
    return outcome.model_copy(update={"measurement": found.model_copy(update=proof)})


def _failure(reason: str) -> Outcome:
    """Returns the outcome of a failed block; its recorded reason begins with the status."""
    status, _, text = reason.partition(": ")
    known = {each.value: each for each in Status}
    if status not in known:
        return Outcome(status=Status.CRASHED, reason=reason)
    return Outcome(status=known[status], reason=text or reason)
