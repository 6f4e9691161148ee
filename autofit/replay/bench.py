"""TableBench: answers probes, blocks and proofs from a table, with its noise and its cost."""

import math
import random
from statistics import fmean

from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.statistics import clipped
from autofit.core.trial import Purpose
from autofit.replay.noise import Bursts, Drift, Runs
from autofit.replay.table import Entry, Table

PROOF_STEPS = 5
"""Steps that a proof times at least."""
DROPPED_STEPS = 1
"""Steps of a block that are run and not counted."""


class VirtualTime:
    """Seconds that pass only when told; hand it to `Clock(now=...)`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Returns the seconds so far."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Lets seconds pass."""
        self.seconds += seconds


class TableBench:
    """A device that is a complete table: what `tuner.run` takes as `evaluate`.

    A plan that fitted always fits, and one that failed fails as it was recorded: memory and status are the entry's
    own. The step times are drawn, see `autofit.replay.noise`. A probe and a proof cost what the recorded probe took; a
    block its steps. A block fails as often as those of its plan did in the recording.

    Args:
        table: has an entry for each plan of its grid.
        seed: decides what is drawn, and at which moment of the recorded drift the search begins.
        block_ratio: a block costs this share of its plan's probe beside its steps: building the step takes time too.

    Attributes:
        time: advanced by what each run costs.

    Raises:
        UsageError: the table is not complete: what a search asks next cannot be known.
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
        """Begins anew with another seed, at second 0: cheaper than another bench of the same table.

        Args:
            seed: as of the bench.
            bursts: slow what runs, beside the recorded noise; None for a machine that nobody else uses.
        """
        self.time.seconds = 0.0
        self._bursts = bursts
        self._chance = random.Random(seed)
        self._began_s = self._chance.uniform(0, 2 * self._drift.length_s)

    def throughputs(self, objective: Objective) -> dict[str, float]:
        """Returns by key of each plan that was measured what many runs drawn here average to, drift left out.

        That is what a search can find: a score from the raw blocks (`Entry.score`) has the drift of the moments at
        which they were recorded in it, and of few blocks the median is not what races converge to. As in a race, a
        block that the machine stalled does not decide.
        """
        return {
            key: math.exp(self._log_throughput(entry, objective))
            for key, entry in self._entries.items() if entry.outcome.measured
        }  # fmt: skip

    def _log_throughput(self, entry: Entry, objective: Objective) -> float:
        ran = self._runs_of(entry).ran
        paces = (entry.units(block, objective) / block.step_time_s for block in ran)
        return fmean(clipped([math.log(pace) + self._drift(at.at_s) for pace, at in zip(paces, ran, strict=True)]))

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Returns what became of a plan, and lets the time pass that it took.

        Raises:
            UsageError: the plan is not in the table's grid.
        """
        entry = self._entries.get(plan.key)
        if entry is None:
            raise UsageError(f"the table has no entry for {plan}: it is not in its grid. Search the table's own space.")
        if not entry.outcome.measured:
            self.time.advance(entry.outcome.duration_s)
            return entry.outcome
        return self._block(entry) if purpose is Purpose.BLOCK else self._probe(entry, purpose)

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


def _failure(reason: str) -> Outcome:
    """Returns the outcome of a block that failed; its reason begins with the status in words."""
    status, _, text = reason.partition(": ")
    known = {each.value: each for each in Status}
    if status not in known:
        return Outcome(status=Status.CRASHED, reason=reason)
    return Outcome(status=known[status], reason=text or reason)
