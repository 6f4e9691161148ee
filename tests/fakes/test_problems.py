"""The problems: a baseline of defaults, reproducible draws, and budgets that leave something to decide."""

from collections.abc import Callable

import pytest

from autofit.core.plan import Plan
from tests.fakes import KNOBS, OPTIMIZER, PRECISION, FakeBench, random_bench, small_bench, space_of

SEEDS = range(60)


def test_baseline_of_a_space_is_the_defaults_at_the_users_size() -> None:
    space = space_of((PRECISION, OPTIMIZER), (2, 4, 8), 4, global_batch_size=8)
    assert space.baseline.combination == Plan(values={"precision": "float32", "optimizer": "own"})
    assert (space.baseline.micro_batch_size, space.baseline.global_batch_size) == (4, 8)
    assert len(list(space.combinations())) == 9


@pytest.mark.parametrize("make", [small_bench, lambda: random_bench(3)], ids=["small", "random"])
def test_every_effect_is_of_a_value_that_a_knob_has(make: Callable[[], FakeBench]) -> None:
    values = {(knob.name, value) for knob in KNOBS for value in knob.values}
    assert set(make().effects) <= values


def test_baseline_of_the_small_bench_fits_and_is_not_the_best() -> None:
    bench = small_bench()
    assert bench.fits(bench.space.baseline)
    assert bench.regret(bench.space.baseline) > 0.2


def test_same_seed_is_the_same_problem_and_another_seed_another() -> None:
    def truth(seed: int) -> tuple[int, float, int]:
        bench = random_bench(seed)
        return bench.peak_bytes(bench.space.baseline), bench.step_time_s(bench.space.baseline), bench.budget_bytes

    assert truth(1) == truth(1)
    assert len({truth(seed) for seed in SEEDS}) == len(SEEDS)


def test_random_budgets_exclude_the_baseline_of_some_problems_and_allow_everything_in_others() -> None:
    benches = [random_bench(seed) for seed in SEEDS]
    largest = [bench.space.at(bench.space.baseline.combination, bench.space.sizes[-1]) for bench in benches]
    assert {bench.fits(bench.space.baseline) for bench in benches} == {True, False}
    assert {bench.fits(plan) for bench, plan in zip(benches, largest, strict=True)} == {True, False}
