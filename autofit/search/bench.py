"""Bench: what a search needs of a workload on a device."""

from typing import Protocol

from autofit.core.briefing import Briefing
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.memory.trace import Trace


class Bench(Protocol):
    """A workload on a device, ready to run plans.

    `autofit.probing` has two, one in this process and one in a child process; `autofit.replay` has one that is a
    recorded table.
    """

    @property
    def briefing(self) -> Briefing:
        """What is known before the first probe. Where it has no `account`, no plan is traced or recorded."""
        ...

    @property
    def proof_start_s(self) -> float:
        """Seconds that a proof takes before it begins, where that needs a fresh process; 0 elsewhere."""
        ...

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan.

        Expected events are outcomes. Only `KeyboardInterrupt` or an `AutofitError` is raised.
        """
        ...

    def trace(self, plan: Plan) -> Trace:
        """Returns the allocations of a plan's training steps, without running them.

        Raises:
            Untraceable: something in the step cannot run without data.
            SpaceError: the plan cannot be applied to this workload.
        """
        ...

    def record(self, plan: Plan) -> Trace:
        """Runs a few short steps of a plan that cannot be traced, and returns the allocations that they made.

        Raises:
            Untraceable: a step failed, or the device keeps no record.
            SpaceError: the plan cannot be applied to this workload.
        """
        ...
