"""Bench: the interface between a search and a workload on a device."""

from collections.abc import Mapping
from typing import Protocol

from autofit.core.briefing import Briefing
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.run_terms import OPEN, RunTerms
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace


class Bench(Protocol):
    """A workload on a device, ready to run plans.

    `autofit.probing` has two implementations, one in this process and one in a child process. Benchmarks of the search
    use a third one, which reads a recorded table.
    """

    @property
    def briefing(self) -> Briefing:
        """Facts that are known before the first probe. Without an `account`, no plan is traced."""

    @property
    def proof_start_s(self) -> float:
        """Seconds that a proof needs to start a fresh process; 0 if it needs none."""

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan on the given terms.

        Expected events are outcomes. Only `KeyboardInterrupt` or an `AutofitError` is raised.
        """

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Compares the gradient of a plan with the baseline's, given the verdicts on values that are known."""

    def trace(self, plan: Plan) -> Trace:
        """Returns the allocations of a plan's training steps, without running them.

        Raises:
            Untraceable: something in the step cannot run without data.
            SpaceError: the plan cannot be applied to this workload.
        """
