"""Why nothing of a combination was measured: by what ran, by bounds, by what is believed."""

from collections.abc import Callable

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Basis, Omission
from autofit.core.trial import Purpose, Trial
from autofit.searchers.guided.guided import Guided
from tests.fakes import MIB, FakeBench, always, problem_of, small_bench, tell
from tests.searchers.guided.test_guided import search


def told(
    bench: FakeBench, estimate: Callable[[Plan], Estimate | None] = lambda plan: None
) -> tuple[set[str], list[Omission]]:
    """Runs a search; returns the combinations that were measured and the omissions."""
    searcher = Guided(problem_of(bench, estimate))
    trials = search(searcher, bench)
    return {t.plan.combination.key for t in trials if t.outcome.measured}, searcher.omissions()


def test_each_combination_was_measured_or_has_a_reason() -> None:
    bench = small_bench()
    measured, omitted = told(bench)
    keys = [omission.plan.combination.key for omission in omitted]
    assert len(keys) == len(set(keys))
    assert set(keys) | measured == {combination.key for combination in bench.space.combinations()}
    assert not set(keys) & measured
    assert {omission.basis for omission in omitted} == {Basis.ASSUMED}
    assert all("of the fastest" in o.reason or "fits with a probability" in o.reason for o in omitted)


def test_what_its_bounds_put_above_the_budget_is_said_to_be_estimated() -> None:
    bench = small_bench()

    def estimate(plan: Plan) -> Estimate:
        peak = 9000 * MIB if plan.values["checkpoint"] == "none" and plan.values["precision"] == "bf16" else MIB
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak, basis="traced")

    _, omitted = told(bench, estimate)
    estimated = [o for o in omitted if o.basis is Basis.ESTIMATED]
    assert estimated
    assert all(o.plan.values["precision"] == "bf16" and o.plan.values["checkpoint"] == "none" for o in estimated)
    assert "needs at least 8.789 GiB, above the budget of 1.465 GiB (traced)" in estimated[0].reason


def test_what_failed_is_said_to_be_measured() -> None:
    bench = small_bench()
    for plan in bench.space.plans():
        if plan.values["precision"] == "bf16":
            bench.faults[plan.key] = always(Status.NUMERIC, "the loss is not finite")

    def estimate(plan: Plan) -> Estimate:
        peak = bench.peak_bytes(plan)
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak)

    _, omitted = told(bench, estimate)
    measured = [o for o in omitted if o.basis is Basis.MEASURED]
    assert {str(o.plan.values["precision"]) for o in measured} == {"bf16"}
    assert any("the loss is not finite" in o.reason for o in measured)
    assert any(o.reason.startswith("precision=bf16 failed: numeric") for o in measured)


def test_nothing_is_said_before_anything_was_measured() -> None:
    bench = small_bench()
    searcher = Guided(problem_of(bench))
    own = bench.space.baseline
    tell(searcher, Trial(number=0, plan=own, outcome=Outcome(status=Status.CRASHED, reason="x"), purpose=Purpose.PROBE))
    assert searcher.omissions() == []
