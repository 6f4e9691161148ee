"""Who begins a race and who joins it."""

import pytest

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.common_scale import CommonScale
from autofit.search.race import MIN_ROUNDS, Race
from autofit.search.race_and_proof import Finalists, by_promise
from autofit.search.trial_runner import TrialRunner
from tests.fakes import small_bench, tuning_of

BENCH = small_bench()
OWN = BENCH.space.baseline
PLANS = [plan for plan in BENCH.space.plans() if plan != OWN]


def trial(plan: Plan, number: int = 0) -> Trial:
    outcome = BENCH.evaluate(plan, Purpose.PROBE)
    assert outcome.status is Status.MEASURED
    return Trial(number=number, plan=plan, outcome=outcome)


def measured(count: int) -> list[Trial]:
    found = [Trial(number=0, plan=OWN, outcome=BENCH.evaluate(OWN, Purpose.PROBE))]
    for plan in PLANS:
        outcome: Outcome = BENCH.evaluate(plan, Purpose.PROBE)
        if outcome.measured and len(found) < count:
            found.append(Trial(number=len(found), plan=plan, outcome=outcome))
    return found


def entrants(trials: list[Trial], probe_s: float = 0.0, left_s: float = float("inf")) -> Finalists:
    runner = TrialRunner(tuning_of(BENCH))
    runner.ledger.block_s = lambda measurement: probe_s  # type: ignore[method-assign]  # what the test is about
    runner.ledger.left_s = lambda: left_s  # type: ignore[method-assign]
    found = Finalists(runner, trials, CommonScale(runner.tuning.objective, trials))
    found.admit(trials)
    return found


def test_with_time_enough_all_finalists_begin_and_the_users_own_is_the_last() -> None:
    trials = measured(4)
    first = entrants(trials).first()
    assert len(first) == 4
    assert first[-1].plan == OWN


def test_as_many_begin_as_there_is_time_for_rounds_and_none_without_a_rival() -> None:
    trials = measured(4)
    assert len(entrants(trials, probe_s=1.0, left_s=3.0 * MIN_ROUNDS).first()) == 3
    assert entrants(trials, probe_s=1.0, left_s=1.0).first() == []


def test_nobody_joins_before_a_race_has_begun() -> None:
    assert entrants(measured(4)).joining() == []


def test_the_best_rival_comes_first() -> None:
    trials = measured(4)[1:]
    promised = by_promise(trials, tuning_of(BENCH).objective)
    assert promised[0] is trials[0]
    assert sorted(t.number for t in promised) == sorted(t.number for t in trials)
    assert by_promise([], tuning_of(BENCH).objective) == []


@pytest.mark.parametrize(("left_s", "running"), [(float("inf"), 4), (30.0, 4), (24.0, 3), (17.0, 2), (1.0, 2)])
def test_a_race_sheds_the_least_promising_plans_if_its_rounds_take_too_long(left_s: float, running: int) -> None:
    trials = measured(4)
    found = entrants(trials, left_s=left_s)
    race = Race(tuple(t.plan.key for t in found.first()), OWN.key)
    assert found.shed(race, 10.0) == 10.0  # no round was run
    race.rounds = MIN_ROUNDS - 3
    assert found.shed(race, 10.0) == pytest.approx(10.0 * running / 4)
    order = [t.plan.key for t in found.first()]
    assert race.running == [*order[: running - 1], OWN.key]
    race.rounds = MIN_ROUNDS
    assert found.shed(race, 1000.0) == 1000.0
