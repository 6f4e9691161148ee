"""What trades time for memory waits until the same plan without it has run, where that is likely to fit."""

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, StrategyRecord
from autofit.core.trial import Purpose, Trial
from autofit.searchers.guided.guided import Guided
from autofit.searchers.guided.throughput import plainer
from tests.fakes import MIB, PRECISION, Effect, FakeBench, problem_of, space_of, tell

BLOCKS = Knob(
    name="blocks",
    values=(0, 4, 8),
    default=0,
    expected=(1.0, 0.93, 0.86),
    growth=(1.0, 0.6, 0.3),
    trades_memory=Trade(technique="recomputing", counted="blocks"),
)
OPERATORS = Knob(name="operators", values=("all", "cheap"), default="all", expected=(1.0, 1.3), growth=(1.0, 1.2))
RECOMPUTING = StrategyRecord(
    name="recomputing", knobs=("blocks", "operators"), about="recomputes", cost="time", effect="exact"
)


def space() -> SearchSpace:
    """Returns a space in which 4 blocks with cheap operators are expected to be a fifth faster than none, wrongly."""
    facts = space_of((PRECISION, BLOCKS, OPERATORS), (8, 16), 8, 16).facts
    return SearchSpace(facts.model_copy(update={"strategies": (RECOMPUTING,)}))


def runs(sample_mib: float) -> list[Plan]:
    """Returns the plans of a search in 4 GiB on a device where recomputation costs a tenth, in order."""
    effects = {
        ("precision", "bf16"): Effect(compute=0.5, activations=0.65),
        ("blocks", 4): Effect(compute=1.1, activations=0.6),
        ("blocks", 8): Effect(compute=1.2, activations=0.3),
        ("operators", "cheap"): Effect(compute=0.98, activations=1.2),
    }
    bench = FakeBench(space(), 4096 * MIB, effects, sample_mib=sample_mib, noise=0.005, drift=0.005)

    def estimate(plan: Plan) -> Estimate:
        peak = round(bench.peak_bytes(plan))
        return Estimate(value_bytes=peak, lower_bytes=peak, upper_bytes=peak, basis="exact")

    searcher, plans = Guided(problem_of(bench, estimate)), list[Plan]()
    while (plan := searcher.ask()) is not None:
        plans.append(plan)
        tell(searcher, Trial(number=len(plans), plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
    return plans


def test_a_plan_loses_all_that_the_technique_sets() -> None:
    given = space()
    with_it = given.baseline.replace(precision="bf16", blocks=4, operators="cheap")
    assert plainer(given.facts, with_it) == given.baseline.replace(precision="bf16")
    assert plainer(given.facts, given.baseline.replace(precision="bf16")) is None


def test_where_memory_is_plenty_the_plan_without_it_runs_first() -> None:
    plans = runs(sample_mib=20)
    assert len(plans) > 3
    for at, plan in enumerate(plans):
        without = plainer(space().facts, plan)
        assert without is None or without in plans[:at], plan


def test_where_the_plan_without_it_does_not_fit_it_runs_at_once() -> None:
    plans = runs(sample_mib=300)
    without = [plainer(space().facts, plan) for plan in plans]
    assert any(plan is not None and plan.micro_batch_size == 16 and plan not in plans for plan in without)
