"""A `PeakModel` on a fake device, asked by plans rather than by places."""

from collections.abc import Callable

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.feasibility.peak_model import PeakModel
from autofit.feasibility.plan_features import PlanList
from tests.fakes import FakeBench, small_bench

FULL = Outcome(status=Status.OUT_OF_MEMORY, reason="full")


class Judge:
    """A `PeakModel` of the plans of a bench."""

    def __init__(self, bench: FakeBench, estimate: Callable[[Plan], Estimate | None] = lambda plan: None) -> None:
        self.bench, self.plans = bench, PlanList(bench.space)
        self.model = PeakModel(self.plans, bench.space.facts.knobs, bench.budget_bytes, estimate)

    def place(self, plan: Plan) -> int:
        place = self.plans.place(plan)
        assert place is not None
        return place

    def likely(self, plan: Plan) -> float:
        return self.model.probability(self.place(plan))

    def tell(self, plan: Plan, outcome: Outcome = FULL) -> None:
        self.model.tell(self.place(plan), outcome)

    def run(self, plan: Plan) -> None:
        self.model.expect(self.place(plan))
        self.tell(plan, self.bench.evaluate(plan, Purpose.PROBE))


def at(bench: FakeBench, size: int, **changes: str) -> Plan:
    """Returns the baseline's combination with changes, at a size."""
    return bench.space.at(bench.space.baseline.combination.replace(**changes), size)


def linear(**changes: object) -> FakeBench:
    """Returns a device whose peak is a straight line in the batch."""
    return small_bench(gradient_mib=0.0, logits_mib=0.0, **changes)
