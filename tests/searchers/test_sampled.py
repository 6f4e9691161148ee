"""Optuna's samplers as searchers: what they are told, and when they stop."""

import logging
from typing import Any

import pytest

from autofit.core.errors import UsageError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.searchers.sampled import PATIENCE, Gp, Grid, Random, Sampled, Tpe
from tests.fakes import problem_of, small_bench


def trial(number: int, plan: Plan, outcome: Outcome) -> Trial:
    return Trial(number=number, plan=plan, outcome=outcome)


@pytest.mark.parametrize("member", [Tpe, Random])
def test_the_users_own_plan_comes_first_and_nothing_is_asked_twice(member: type[Sampled]) -> None:
    bench = small_bench()
    searcher, asked = member(problem_of(bench)), list[Plan]()
    while (plan := searcher.ask()) is not None:
        asked.append(plan)
        searcher.tell(trial(len(asked), plan, bench.evaluate(plan, Purpose.PROBE)))
    assert asked[0] == bench.space.baseline
    assert len({plan.key for plan in asked}) == len(asked)
    assert PATIENCE < len(asked) < 120


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.CRASHED, Status.OUT_OF_MEMORY, Status.NUMERIC])
def test_what_failed_is_told_as_infeasible_and_never_as_a_failed_trial(status: Status) -> None:
    bench = small_bench()
    searcher = Tpe(problem_of(bench))
    for number in range(4):
        plan = searcher.ask()
        assert plan is not None
        searcher.tell(trial(number, plan, Outcome(status=status, reason="told")))
    found = searcher._study.get_trials(deepcopy=False)
    assert len(found) == 4
    assert all(each.state.name == "COMPLETE" for each in found)
    assert all(max(each.constraints.values()) > 0 for each in found)


def test_it_stops_when_there_was_no_gain_for_long() -> None:
    bench = small_bench()
    searcher = Random(problem_of(bench))
    measured = bench.evaluate(bench.space.baseline, Purpose.PROBE)
    for number in range(200):
        plan = searcher.ask()
        if plan is None:
            break
        searcher.tell(trial(number, plan, measured))
    assert number == PATIENCE + 1


def test_a_small_space_is_exhausted() -> None:
    bench = small_bench()
    facts = bench.space.facts.model_copy(update={"sizes": (4, 8), "knobs": bench.space.facts.knobs[:1]})
    own = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, facts.knobs[0].name: facts.knobs[0].default})
    alone = small_bench(space=type(bench.space)(facts.model_copy(update={"baseline": own})))
    searcher, asked = Tpe(problem_of(alone)), set[str]()
    while (plan := searcher.ask()) is not None:
        asked.add(plan.key)
        searcher.tell(trial(len(asked), plan, alone.evaluate(plan, Purpose.PROBE)))
    assert len(asked) == 2 * len(facts.knobs[0].values)


@pytest.mark.slow
def test_the_gaussian_process_learns_where_a_random_order_does_not() -> None:
    pytest.importorskip("scipy")
    found = {}
    for member in (Gp, Random):
        best = []
        for seed in range(3):
            bench = small_bench()
            searcher = member(problem_of(bench, seed=seed))
            for number in range(14):
                plan = searcher.ask()
                assert plan is not None
                searcher.tell(trial(number, plan, bench.evaluate(plan, Purpose.PROBE)))
            best.append(max(bench.samples_per_s(p) for p in bench.probes() if bench.fits(p)))
        found[member.name] = sum(best)
    assert found["gp"] >= found["random"]


def test_without_scipy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise ImportError("no module named 'scipy'")

    monkeypatch.setattr("optuna.samplers.GPSampler", missing)
    with pytest.raises(UsageError, match=r"pip install .\.\[gp\]. in a checkout"):
        Gp(problem_of(small_bench()))


def test_optuna_says_nothing(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    bench = small_bench()
    with caplog.at_level(logging.DEBUG):
        searcher = Tpe(problem_of(bench))
        plan = searcher.ask()
        assert plan is not None
        searcher.tell(trial(0, plan, bench.evaluate(plan, Purpose.PROBE)))
        searcher.ask()
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


def test_the_grid_is_every_plan_once_in_an_order_of_the_seed() -> None:
    bench = small_bench()
    orders = []
    for seed in (0, 0, 1):
        searcher, asked = Grid(problem_of(bench, seed=seed)), list[Plan]()
        while (plan := searcher.ask()) is not None:
            asked.append(plan)
            searcher.tell(trial(len(asked), plan, Outcome(status=Status.SKIPPED, reason="told")))
        orders.append([plan.key for plan in asked])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] == bench.space.baseline.key
    expected = {bench.space.at(c, s).key for c in bench.space.combinations() for s in bench.space.sizes}
    assert set(orders[0]) == expected | {bench.space.baseline.key}
    assert len(set(orders[0])) == len(orders[0])
