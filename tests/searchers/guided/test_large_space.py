"""A space of 200,000 plans is searched in the time and the memory of a dozen plans, and what is forbidden stays out."""

import tracemalloc
from itertools import pairwise
from statistics import median
from time import process_time

import numpy as np
import pytest

from autofit import estimators
from autofit.core.knob import Knob
from autofit.core.outcome import Status
from autofit.core.space import Conflict, SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.feasibility import Feasibility
from autofit.searchers.guided import guided
from autofit.searchers.guided.guided import Guided
from scripts.bench.search import cases, runs
from scripts.bench.search.large_spaces import large_space
from scripts.bench.search.simulated import Effect
from tests.fakes import MIB, FakeBench, problem_of, space_of, tell

COUNTS = {
    "precision": 4,
    "compile": 4,
    "blocks": 5,
    "selective": 2,
    "attention": 3,
    "optimizer": 4,
    "loss": 2,
    "format": 4,
}
KNOBS = tuple(Knob(name=name, values=tuple(f"v{at}" for at in range(n)), default="v0") for name, n in COUNTS.items())
SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128)
CONFLICTS = (
    Conflict(values={"compile": "v3", "blocks": "v4"}, reason="not together"),
    Conflict(values={"attention": "v2", "selective": "v1"}, reason="not together"),
)


@pytest.fixture(scope="module")
def bench() -> FakeBench:
    space = space_of(KNOBS, SIZES, 8)
    effects: dict[tuple[str, object], Effect] = {
        ("precision", "v2"): Effect(compute=0.5, activations=0.6),
        ("compile", "v1"): Effect(compute=0.8, launch=0.4),
        ("blocks", "v4"): Effect(compute=1.3, activations=0.2),
        ("optimizer", "v2"): Effect(update=0.4),
    }
    forbidding = SearchSpace(space.facts.model_copy(update={"forbidden": CONFLICTS}))
    return FakeBench(space=forbidding, budget_bytes=1500 * MIB, effects=effects, noise=0.01, drift=0.005)


def search(bench: FakeBench, most: int) -> tuple[list[Trial], list[float]]:
    """Returns the first trials of a search, and the seconds of CPU time of each question."""
    given = Feasibility(bench.space, bench.budget_bytes, [estimators.Measured()])
    searcher, trials, seconds = Guided(problem_of(bench, feasibility=given)), list[Trial](), list[float]()
    for number in range(most):
        began = process_time()
        plan = searcher.ask()
        seconds.append(process_time() - began)
        assert plan is not None
        trials.append(Trial(number=number, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
        tell(searcher, trials[-1])
    assert len(searcher.omissions()) == 100
    return trials, seconds


@pytest.mark.slow
def test_a_large_space_is_searched_quickly_and_what_is_forbidden_is_not_asked_for(bench: FakeBench) -> None:
    trials, seconds = search(bench, most=10)
    assert median(seconds) < 1.0  # 0.1 s on a calm machine
    assert not any(conflict.applies_to(trial.plan) for trial in trials for conflict in CONFLICTS)
    assert bench.samples_per_s(trials[-1].plan) > 1.5 * bench.samples_per_s(bench.space.baseline)


@pytest.mark.slow
def test_a_large_space_needs_little_memory(bench: FakeBench) -> None:
    tracemalloc.start()
    try:
        search(bench, most=3)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 200 * MIB


@pytest.mark.slow
def test_every_place_of_a_large_space_is_that_of_its_plan(bench: FakeBench) -> None:
    plans = Feasibility(bench.space, bench.budget_bytes).plans
    for place in np.random.default_rng(0).integers(0, len(plans.plans), 200):
        plan = plans.plans[int(place)]
        assert bench.space.violation(plan) is None
        assert plans.place(plan) == place
        assert plans.sizes[place] == plan.micro_batch_size
        assert place in plans.with_combination_of(int(place))
    numbers = plans.points.combinations
    assert np.all(np.diff(numbers) >= 0)
    assert numbers[-1] + 1 == len(set(map(bytes, plans.points.values)))
    assert all(
        plans.with_combination_of(a).stop <= plans.with_combination_of(b).start
        for a, b in pairwise(range(0, len(numbers), 5000))
    )


@pytest.mark.parametrize("told", [0, 1, 4, 9])
def test_the_probabilities_of_many_plans_are_those_of_each(told: int) -> None:
    space = space_of(KNOBS[:4], SIZES, 8)
    bench = FakeBench(space=space, budget_bytes=900 * MIB, noise=0.01)
    given = Feasibility(space, bench.budget_bytes, [estimators.Measured()])
    chance = np.random.default_rng(told)
    for number, place in enumerate(chance.integers(0, len(given.plans.plans), told)):
        plan = given.plans.plans[int(place)]
        given.tell(Trial(number=number, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
    places = chance.integers(0, len(given.plans.plans), 150)
    assert given.only_modelled(places).sum() > 0
    each = [given.probability(given.plans.plans[int(place)]) for place in places]
    assert given.probabilities(places) == pytest.approx(each, rel=1e-12)


def rejected(name: str, device: int) -> list[set[object]]:
    """Returns the values of the plans that were rejected in a search of a large space with traces."""
    (case,) = cases.cases(name, [device])
    ran = runs.rehearse(case, case.bench(), "guided", "traced", seed=0)
    assert ran.findings is not None
    return [set(plan.values.items()) for plan, _, outcome in ran.runs if outcome.status is Status.REJECTED]


@pytest.mark.slow
def test_a_value_that_always_fails_is_found_by_few_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rejected("nothing_pays_20k", 102)
    assert large_space("nothing_pays_20k", 102).failing == {("attention", "cudnn")}
    assert 1 <= len(found) <= 2
    monkeypatch.setattr(guided, "chances_to_run", lambda points, outcomes, alive: np.ones(len(points.octaves)))
    assert len(rejected("nothing_pays_20k", 102)) > 2


def regret(looks: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns the regret of a search where several changes that save memory meet, with so many looks at the end."""
    monkeypatch.setattr(guided, "MAX_HOPES", looks)
    (case,) = cases.cases("short_memory_2k", [103])
    return runs.scored(case, runs.rehearse(case, case.bench(), "guided", "traced", seed=0)).regret


@pytest.mark.slow
def test_a_plan_that_the_model_holds_for_too_large_is_looked_at_before_the_search_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert regret(guided.MAX_HOPES, monkeypatch) < 0.01
    assert regret(0, monkeypatch) > 0.02
