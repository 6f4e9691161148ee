"""A `Bench` that answers with a function, and the briefing of a fake bench."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.core.briefing import Briefing
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from scripts.bench.search.simulated import FakeBench


def briefing_of(bench: FakeBench, **changes: Any) -> Briefing:
    """Returns the briefing of `bench` before the first probe; `changes` replace its fields."""
    environment = Environment(
        workload="model-data", device_type="fake", device_name="Fake 1", capacity_bytes=2**34, versions={"fake": "1"}
    )
    fields: dict[str, Any] = {
        "space": bench.space.facts,
        "environment": environment,
        "budget": Budget(memory_bytes=bench.budget_bytes, memory_note="as asked"),
        "enforced": True,
    }
    return Briefing(**(fields | changes))


@dataclass(frozen=True)
class OpenedBench:
    """A bench that answers with a function, and traces nothing."""

    briefing: Briefing
    run: Callable[..., Outcome]
    proof_start_s: float = 0.0
    judge: Callable[[Plan], Checked] = lambda plan: Checked()

    def evaluate(self, plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        """Runs a plan."""
        return self.run(plan, purpose)

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns what `judge` says: by default, that the plan keeps the gradient."""
        return self.judge(plan)

    def trace(self, plan: Plan) -> Trace:
        """Is not asked: its briefing has no account."""
        raise AssertionError("a bench without an account was asked for a trace")


def opened(briefing: Briefing, evaluate: Callable[..., Outcome]) -> OpenedBench:
    """Returns a bench with this briefing that runs plans by `evaluate`."""
    return OpenedBench(briefing, evaluate)
