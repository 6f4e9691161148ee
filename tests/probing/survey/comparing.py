"""The gates as tests ask them: on one batch, and within the limits of reduced precision."""

from typing import Any

from autofit.core.plan import Plan
from autofit.probing.survey import gates
from autofit.probing.survey.accumulation_gate import accumulation
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import STATELESS, Build, State
from autofit.workloads.counted_batches import Cuttable


def accumulated(build: Build, batch: Any, seed: int = 0, state: State = STATELESS) -> GateResult:
    """Returns the verdict on accumulation of one batch."""
    return accumulation(build, [Cuttable.of(batch)], seed, state)


def rounded(build: Build, plan: Plan, batch: Any, seed: int = 0) -> GateResult:
    """Returns the verdict on a plan that computes in reduced precision."""
    return gates.compare(build, Compared(plan, rounded=True), batch, seed)
