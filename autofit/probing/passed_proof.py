"""Passed proof: what is checked and chosen once a proof has passed, for the plan that is about to be recommended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.devices.base import Device
from autofit.probing.loading import LoaderTrials
from autofit.probing.proof_gate import ProofGate
from autofit.probing.watchdog import Watchdog
from autofit.workloads.batches import BatchSource


@dataclass(slots=True)
class PassedProof:
    """The gate of techniques that are too expensive to check before, and then the choice of worker processes.

    Attributes:
        gate: the gate.
        source: makes the batches.
        device: where plans run.
        watch: ends what exceeds its share of the time budget.
        beat: called with each phase, as a sign of life.
        put_back: restores what a step or reading the data may have changed.
        rates: samples per second of the fastest run of each plan, by its key (`note_rate`).
    """

    gate: ProofGate
    source: BatchSource
    device: Device
    watch: Watchdog
    beat: Callable[[str], None]
    put_back: Callable[[], None]
    rates: Mapping[str, float]

    def judged(self, plan: Plan, outcome: Outcome, baseline: Plan) -> Outcome:
        """Returns the outcome of a measured proof after its gate, with the settings of the loader if it passes."""
        try:
            outcome = self.gate.judged(outcome, plan, baseline)
        finally:
            self.put_back()
        trials = LoaderTrials(self.source, self.device, self.watch, self.beat)
        return trials.added(outcome, plan.micro_batch_size, self.rates.get(plan.key, 0.0), self.put_back)


def note_rate(rates: dict[str, float], plan: Plan, outcome: Outcome) -> None:
    """Adds the speed of a run of a plan to the fastest rates by key, unless it was slower or not measured."""
    if outcome.measurement is not None:
        rates[plan.key] = max(rates.get(plan.key, 0.0), outcome.measurement.samples_per_s)
