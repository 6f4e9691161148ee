"""What every searcher keeps."""

from dataclasses import replace

import pytest

from autofit import searchers
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Conflict, SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.search.request import Tuning
from autofit.search.search import run
from autofit.searchers.base import Searcher
from tests.fakes import MIB, FakeBench, problem_of, small_bench, tell, tuning_of

pytestmark = pytest.mark.slow

each_member = pytest.mark.parametrize("member", searchers.members(), ids=lambda member: member.name)


def made(member: type[Searcher], bench: FakeBench, seed: int = 0) -> Searcher:
    return member(problem_of(bench, seed=seed))


def short(tuning: Tuning, trials: int = 15) -> Tuning:
    return replace(tuning, budget=tuning.budget.model_copy(update={"max_trials": trials}))


def test_names_are_unique_and_the_default_is_first() -> None:
    names = [member.name for member in searchers.members()]
    assert len(names) == len(set(names))
    assert names[0] == "guided"


@each_member
def test_proposes_only_plans_of_the_space(member: type[Searcher]) -> None:
    bench = small_bench()
    searcher = made(member, bench)
    for number in range(25):
        plan = searcher.ask()
        if plan is None:
            break
        assert bench.space.violation(plan) is None
        assert plan == bench.space.baseline or plan == bench.space.at(plan.combination, plan.micro_batch_size)
        tell(searcher, Trial(number=number, plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE)))


@each_member
def test_keeps_to_what_the_space_forbids(member: type[Searcher]) -> None:
    bench = small_bench()

    conflict = Conflict(values={"precision": "bf16", "optimizer": "fused"}, reason="not together")
    space = SearchSpace(bench.space.facts.model_copy(update={"forbidden": (conflict,)}))
    findings = run(short(tuning_of(bench, space=space, searcher=member)))
    assert not any(conflict.applies_to(plan) for plan, _ in bench.runs)
    assert bench.samples_per_s(findings.plan) >= bench.samples_per_s(bench.space.baseline)


@each_member
def test_the_same_seed_gives_the_same_plans(member: type[Searcher]) -> None:
    asked = []
    for _ in range(2):
        bench = small_bench()
        run(short(tuning_of(bench, searcher=member, seed=7)))
        asked.append(bench.probes())
    assert asked[0] == asked[1]


@each_member
def test_takes_trials_that_it_did_not_ask_for(member: type[Searcher]) -> None:
    bench = small_bench()
    searcher = made(member, bench)
    strange = bench.space.baseline.replace(micro_batch_size=7)
    for number, status in enumerate(Status):
        ran = status in (Status.MEASURED, Status.OVER_BUDGET)
        measurement = bench.evaluate(strange, Purpose.PROBE).measurement if ran else None
        outcome = Outcome(status=status, reason="told", measurement=measurement)
        tell(searcher, Trial(number=number, plan=strange, outcome=outcome, earlier=True))
    plan = searcher.ask()
    assert plan is not None
    assert bench.space.violation(plan) is None


@each_member
def test_beats_the_users_own_setting_within_thirty_probes(member: type[Searcher]) -> None:
    bench = small_bench()
    tuning = tuning_of(bench, searcher=member)
    findings = run(short(tuning, 30))
    assert len(bench.probes()) <= 31  # and the user's own setting, when the searcher did not ask for it
    assert bench.samples_per_s(findings.plan) > 1.2 * bench.samples_per_s(bench.space.baseline)
    assert bench.fits(findings.plan)


@each_member
def test_a_space_of_one_plan_is_searched(member: type[Searcher]) -> None:
    bench = small_bench()
    own = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1})
    facts = bench.space.facts.model_copy(update={"sizes": (8,), "knobs": (), "baseline": own})
    alone = small_bench(space=replace(bench.space, facts=facts), budget_bytes=4000 * MIB)
    findings = run(tuning_of(alone, searcher=member))
    assert findings.plan == own
    assert findings.gain is not None
    assert findings.gain.value == 1.0
