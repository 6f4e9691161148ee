"""The grid proposes every plan once, the user's own first."""

from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.searchers.sampled import Grid
from tests.fakes import problem_of, small_bench, tuning_of

BENCH = small_bench()


def walk(seed: int) -> list[Plan]:
    grid, found = Grid(problem_of(BENCH, seed=seed)), list[Plan]()
    while (plan := grid.ask()) is not None:
        found.append(plan)
        grid.tell(Trial(number=len(found), plan=plan, outcome=BENCH.evaluate(plan, Purpose.PROBE)))
    return found


def test_every_plan_comes_once_and_the_users_own_first() -> None:
    found = walk(0)
    space = tuning_of(BENCH).space
    assert found[0] == space.baseline
    assert {plan.key for plan in found} == {plan.key for plan in space.plans()} | {space.baseline.key}
    assert len(found) == len({plan.key for plan in found})


def test_the_seed_decides_the_order() -> None:
    assert walk(1) == walk(1)
    assert walk(1) != walk(2)


def test_a_block_of_a_race_strikes_nothing_off() -> None:
    grid = Grid(problem_of(BENCH))
    first = grid.ask()
    assert first is not None
    grid.tell(Trial(number=0, plan=first, purpose=Purpose.BLOCK, outcome=BENCH.evaluate(first, Purpose.BLOCK)))
    assert grid.ask() == first
