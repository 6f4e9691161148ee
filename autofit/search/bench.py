"""Bench: the interface between a search and a workload on a device."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from autofit.core.briefing import Briefing
from autofit.core.gate_verdict import Checked, GateVerdict
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.memory.trace import Trace


class Bench(Protocol):
    """A workload on a device, ready to run plans.

    `autofit.probing` has two implementations, one in this process and one in a child process; `autofit.replay` has one
    from a recorded table.
    """

    @property
    def briefing(self) -> Briefing:
        """Facts that are known before the first probe. Without an `account`, no plan is traced or recorded."""
        ...

    @property
    def proof_start_s(self) -> float:
        """Seconds that a proof needs to start a fresh process; 0 if it needs none."""
        ...

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan.

        Expected events are outcomes. Only `KeyboardInterrupt` or an `AutofitError` is raised.
        """
        ...

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns whether a plan keeps the baseline's gradient, in inference its output.

        Values with a known verdict are not compared again: those that passed pass, and one that failed fails the plan.

        Args:
            plan: the plan that is to become the answer.
            known: earlier verdicts on values of this workload, by value (`Checked.verdicts`).
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
        """Runs a few short steps of a plan that cannot be traced, and returns their allocations.

        Raises:
            Untraceable: a step failed, or the device keeps no record.
            SpaceError: the plan cannot be applied to this workload.
        """
        ...


@runtime_checkable
class RestartableBench(Bench, Protocol):
    """A bench that runs plans in a process of their own, and can start one with other settings of a whole process."""

    @property
    def fresh_proof_s(self) -> float:
        """Seconds that `prove_under` needs, by the last start of a process and the last proof, with a margin."""
        ...

    def prove_under(self, plan: Plan, variables: Mapping[str, str], left_s: float) -> tuple[Briefing, Outcome] | None:
        """Proves a plan in a fresh process, with other environment variables if any are given.

        Args:
            plan: what to prove.
            variables: environment variables in addition to those of this process.
            left_s: seconds that are left for it; infinity for no limit.

        Returns:
            The briefing of that process, which says what is in force there, and the outcome of the proof. None if the
            time does not suffice, or if the process cannot be opened.

        Raises:
            RestoreError: the process that ran plans before found a difference when it ended.
        """
        ...
