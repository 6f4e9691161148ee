"""A searcher's problem, and the order in which a trial is told."""

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.searchers.base import Searcher
from tests.fakes import problem_of, small_bench, tell


class Asking(Searcher):
    """Notes how likely a plan is to fit when it is told the plan's trial."""

    name = "asking"
    probability = 1.0

    def ask(self) -> Plan | None:
        return None

    def tell(self, trial: Trial) -> None:
        self.probability = self.problem.feasibility.probability(trial.plan)


def test_feasibility_learns_of_a_trial_before_the_searcher() -> None:
    bench = small_bench()
    searcher = Asking(problem_of(bench))
    full = Outcome(status=Status.OUT_OF_MEMORY, reason="full")
    tell(searcher, Trial(number=0, plan=bench.space.baseline, outcome=full))
    assert searcher.probability == 0.0


def test_memory_is_estimated_by_the_function_and_fields_are_replaced() -> None:
    bench = small_bench()
    problem = problem_of(bench, lambda plan: Estimate(value_bytes=7), seed=3)
    assert problem.feasibility.estimate(bench.space.baseline) == Estimate(value_bytes=7)
    assert (problem.seed, problem.memory_bytes) == (3, bench.budget_bytes)
