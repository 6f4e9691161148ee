"""Which plan promises the most: the same whatever the number of plans that are looked at at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autofit import estimators
from autofit.core.statistics import expected_gain
from autofit.core.trial import Purpose, Trial
from autofit.feasibility import Feasibility
from autofit.search.search import run
from autofit.searchers.guided.gain_per_second import (
    EQUAL_RATIO,
    HOPEFUL_GAIN,
    LEAST_HOPE,
    WORTH_A_LOOK,
    Candidates,
    Proposal,
    expected_gains,
)
from autofit.searchers.guided.stopping import MIN_GAIN
from scripts.bench.search.replay import TableEstimator
from tests.fakes import FakeBench, random_bench, small_bench, tuning_of


def test_gains_are_those_of_each_plan() -> None:
    means, deviations = np.array([-3.0, -0.1, 0.0, 0.2, 5.0]), np.array([0.1, 0.05, 1e-6, 0.3, 0.01])
    each = [expected_gain(float(mean), float(deviation)) for mean, deviation in zip(means, deviations, strict=True)]
    assert expected_gains(means, deviations) == pytest.approx(each, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    ("rates", "places", "best"),
    [
        ([], [], (1.0, 7)),
        ([0.9], [3], (1.0, 7)),
        ([1.0, 2.0, 1.5], [3, 9, 1], (2.0, 9)),
        ([2.0, 2.0 * (1 - EQUAL_RATIO / 2)], [9, 4], (2.0 * (1 - EQUAL_RATIO / 2), 4)),
        ([1.0], [3], (1.0, 3)),  # equal, and listed before
        ([1.0], [8], (1.0, 7)),
    ],
)
def test_the_best_of_several_is_that_with_the_highest_rate_and_of_equal_ones_the_first(
    rates: Sequence[float], places: Sequence[int], best: tuple[float, int]
) -> None:
    found = Proposal(1.0, 7).or_best(np.array(rates), np.array(places, dtype=np.int64))
    assert (found.rate, found.place) == best


def candidates(bench: FakeBench, **changes: Any) -> Candidates:
    """Returns all plans of a bench with drawn gains, of which some ran."""
    known = Feasibility(bench.space, bench.budget_bytes, [estimators.Measured()])
    chance, count = np.random.default_rng(0), len(known.plans.plans)
    tried = [0, 7, 30, 31, 45, 90]
    for number, place in enumerate(tried):
        plan = known.plans.plans[place]
        known.tell(Trial(number=number, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))
    gains = chance.uniform(0, 0.4, count)
    gains[tried] = 0.0
    fields: dict[str, Any] = {"gains": gains, "seconds": chance.uniform(1, 3, count), "least_gain": MIN_GAIN}
    return Candidates(**(fields | {"tried": tried, "looked": tried, "feasibility": known} | changes))


@pytest.mark.parametrize("first", [1, 10**6])
def test_the_best_plan_is_the_one_with_the_most_gain_per_second_by_its_probability(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autofit.searchers.guided.gain_per_second.FIRST", first)
    given = candidates(small_bench())
    fits = np.array([given.feasibility.probability(plan) for plan in given.feasibility.plans.plans])
    worth = np.where(fits >= given.feasibility.required_probability, fits * given.gains / given.seconds, 0.0)
    sure, step, risk, _ = given.proposals(may_step=True)
    assert sure.place == int(worth.argmax())
    assert sure.rate == pytest.approx(worth.max())
    assert step.place is None or given.feasibility.is_likely(given.feasibility.plans.plans[step.place])
    assert risk.place is None or fits[risk.place] < given.feasibility.required_probability


@pytest.mark.parametrize(
    ("gain", "probability", "worth"),
    [
        (MIN_GAIN, 1.0, True),
        (0.99 * MIN_GAIN, 1.0, False),
        (2 * MIN_GAIN, 0.9, True),
        (1.1 * MIN_GAIN, 0.89, False),
        (0.0, 1.0, False),
    ],
)
def test_a_gain_is_worth_a_probe_by_the_probability_that_the_plan_fits(
    gain: float, probability: float, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = candidates(small_bench())
    monkeypatch.setattr(Feasibility, "probabilities", lambda self, places: np.full(len(places), probability))
    gains = np.zeros(len(given.gains))
    gains[12] = gain
    sure, _, _, _ = candidates(small_bench(), gains=gains).proposals(may_step=False)
    assert (sure.place == 12) is worth


def test_a_step_is_the_largest_likely_size_below_a_plan_that_is_not_likely_to_fit() -> None:
    bench = small_bench()
    given = candidates(bench)
    plans = given.feasibility.plans
    unlikely = [
        place for place, plan in enumerate(plans.plans)
        if not given.feasibility.is_likely(plan) and place not in given.tried
    ]  # fmt: skip
    gains = np.zeros(len(plans.plans))
    gains[unlikely] = 0.3
    _, step, _, _ = candidates(bench, gains=gains, feasibility=given.feasibility).proposals(may_step=True)
    assert step.place is not None
    target = plans.plans[step.place + 1]
    assert target.combination == plans.plans[step.place].combination
    assert not given.feasibility.is_likely(target)
    assert given.feasibility.is_likely(plans.plans[step.place])
    assert candidates(bench, gains=gains, feasibility=given.feasibility).proposals(may_step=False)[1] == Proposal()


@pytest.mark.parametrize(
    ("gain", "probability", "looked", "hoped"),
    [
        (HOPEFUL_GAIN, 0.05, False, True),
        (HOPEFUL_GAIN, LEAST_HOPE, False, True),
        (HOPEFUL_GAIN, 0.9 * LEAST_HOPE, False, False),
        (0.9 * HOPEFUL_GAIN, 0.05, False, False),
        (HOPEFUL_GAIN, 0.05, True, False),  # a look has said that it is unlikely
        (HOPEFUL_GAIN, WORTH_A_LOOK, False, False),  # likely enough to be looked at in its turn
    ],
)
def test_a_plan_that_promises_much_may_be_looked_at_though_the_model_holds_it_for_unlikely(
    gain: float, probability: float, looked: bool, hoped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = candidates(small_bench())
    monkeypatch.setattr(Feasibility, "probabilities", lambda self, places: np.full(len(places), probability))
    monkeypatch.setattr(Feasibility, "baseline_is_estimated", True)
    gains = np.zeros(len(given.gains))
    gains[12] = gain
    *_, hope = candidates(small_bench(), gains=gains, looked=[12] if looked else []).proposals(may_step=False)
    assert (hope.place == 12) is hoped


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_search_is_the_same_however_many_plans_are_looked_at_at_a_time(
    estimated: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probes() -> list[Any]:
        bench = random_bench(seed)
        peaks = {plan.key: bench.peak_bytes(plan) for plan in bench.space.plans()} if estimated else {}
        seen = [TableEstimator(peaks, error_ratio=0.04, at_once=False)] if estimated else []
        run(tuning_of(bench, estimators=[*seen, estimators.Measured()]))
        return bench.probes()

    usual = probes()
    monkeypatch.setattr("autofit.searchers.guided.gain_per_second.FIRST", 1)
    assert probes() == usual
    monkeypatch.setattr("autofit.searchers.guided.gain_per_second.FIRST", 10**6)
    assert probes() == usual
