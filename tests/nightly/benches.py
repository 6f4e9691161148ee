"""A simulated job for the tests of a night: a fake bench, a runner on it, and answers of its plans."""

from collections.abc import Callable
from typing import Any

from autofit.core.answer import Answer, Candidate
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.measuring import PlanRunner
from tests.fakes import FakeBench, briefing_of, opened, small_bench


def calm(**changes: Any) -> FakeBench:
    """Returns a bench with little noise."""
    return small_bench(**({"noise": 0.004, "drift": 0.002} | changes))


def faster(bench: FakeBench) -> Plan:
    """Returns a plan that is clearly faster than the baseline and fits."""
    return bench.space.baseline.replace(precision="bf16", optimizer="fused")


def runner_of(
    bench: FakeBench,
    limit_s: float | None = None,
    evaluate: Callable[[Plan, Purpose], Outcome] | None = None,
    **briefing: Any,
) -> PlanRunner:
    """Returns a runner of `bench`, whose clock is that of the simulation."""
    clock = Clock(now=bench.time, limit_s=limit_s)
    there = opened(briefing_of(bench, **briefing), evaluate or bench.evaluate)
    return PlanRunner(there, Objective(), clock)


def recommended(bench: FakeBench, plan: Plan, briefing: Briefing | None = None, **changes: Any) -> Answer:
    """Returns an answer of a plan of `bench`."""
    known = briefing or briefing_of(bench)
    quiet = FakeBench(space=bench.space, budget_bytes=bench.budget_bytes, effects=bench.effects, noise=0.0, drift=0.0)
    proof, baseline = quiet.evaluate(plan, Purpose.PROOF), quiet.evaluate(bench.space.baseline, Purpose.PROBE)
    assert proof.measurement is not None
    fields: dict[str, Any] = {
        "plan": plan,
        "proof": proof.measurement,
        "baseline": Candidate(plan=bench.space.baseline, outcome=baseline),
        "budget": known.budget,
        "objective": Objective(),
        "environment": known.environment,
    }
    return Answer(**(fields | changes))
