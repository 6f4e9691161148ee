"""The large spaces: their figures for all plans are those of each, and their traps are really there."""

from functools import cache

import numpy as np
import pytest

from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.strategies import compilation, linear_cross_entropy, precision
from scripts.bench.search import cases, runs
from scripts.bench.search.large import LargeBench
from scripts.bench.search.large_spaces import COMPILE, COMPILE_S, LARGE, LOSS, PRECISION, large_space

SMALL = [name for name in LARGE if name.endswith("_2k")]
MIDDLE = [name for name in LARGE if name.endswith("_20k")]


@cache
def made(name: str) -> LargeBench:
    return large_space(name)


def some(bench: LargeBench, count: int) -> list[int]:
    return [int(place) for place in np.random.default_rng(0).integers(0, len(bench.plans.plans), count)]


@pytest.mark.parametrize("name", LARGE)
def test_a_space_has_about_as_many_plans_as_its_name_says_and_a_description(name: str) -> None:
    most = {"2k": 2_000, "20k": 20_000, "200k": 200_000}[name.rpartition("_")[2]]
    assert 0.6 * most < len(made(name).plans.plans) < 1.2 * most
    assert LARGE[name].__doc__


@pytest.mark.parametrize("name", [*SMALL, *MIDDLE])
def test_the_best_plan_fits_and_no_other_is_faster(name: str) -> None:
    bench = made(name)
    best = bench.best()
    assert bench.fits(best)
    assert bench.space.violation(best) is None
    assert bench.samples_per_s(best) > 1.3 * bench.samples_per_s(bench.space.baseline)
    plans = [bench.plans.plans[place] for place in some(bench, 300)]
    assert all(bench.samples_per_s(plan) <= bench.samples_per_s(best) for plan in plans if bench.fits(plan))


@pytest.mark.parametrize("name", SMALL)
def test_every_plan_is_judged_as_the_best_was(name: str) -> None:
    bench = made(name)
    fitting = [plan for plan in bench.plans.plans if bench.fits(plan)]
    assert 0.2 < len(fitting) / len(bench.plans.plans) < 0.95
    assert bench.best() == max(fitting, key=bench.samples_per_s)


def test_a_seed_decides_everything() -> None:
    one, same, other = large_space("plain_2k"), large_space("plain_2k"), large_space("plain_2k", seed=1)
    plan = one.best()
    assert same.best() == plan
    assert same.samples_per_s(plan) == one.samples_per_s(plan) != other.samples_per_s(plan)


def test_a_search_that_is_repeated_with_its_seed_sees_the_same() -> None:
    bench, seen = large_space("plain_2k"), []
    for seed in (3, 3, 4):
        bench.rewind(seed)
        seen.append(bench.evaluate(bench.space.baseline, Purpose.PROBE))
    assert seen[0] == seen[1] != seen[2]


def test_compilation_is_charged_once_for_each_combination() -> None:
    bench = large_space("plain_20k")
    bench.rewind(0)
    plan = bench.space.at(bench.space.baseline.combination.replace(compile="max-autotune"), 8)
    first, again = (bench.evaluate(plan, Purpose.PROBE).duration_s for _ in range(2))
    larger = bench.evaluate(bench.space.at(plan.combination, 16), Purpose.PROBE).duration_s
    other = bench.evaluate(bench.space.at(plan.combination.replace(precision="bf16"), 8), Purpose.PROBE).duration_s
    compile_s = COMPILE_S["compile", "max-autotune"]
    assert first - again == pytest.approx(compile_s, rel=0.05)
    assert larger < compile_s < other


def test_a_value_fails_at_any_size_and_forbidden_values_do_not_meet() -> None:
    bench = made("plain_20k")
    base = bench.space.baseline.combination
    failing = base.replace(attention="cudnn")
    for size in bench.space.sizes[:3]:
        assert bench.evaluate(bench.space.at(failing, size), Purpose.PROBE).status is Status.REJECTED
    assert bench.space.conflict(base.replace(selective="matmuls")) == "nothing is checkpointed"
    assert bench.space.conflict(base.replace(selective="matmuls", checkpointed_blocks=3)) is None


def test_what_pays_alone_may_not_pay_together() -> None:
    bench = made("together_2k")

    def gain(precision: str) -> float:
        off = bench.space.at(bench.space.baseline.combination.replace(precision=precision), 8)
        return bench.samples_per_s(off.replace(compile="default")) / bench.samples_per_s(off)

    assert gain("fp32") < 1.1 < 1.3 < gain("bf16")


def test_few_changes_pay_where_nothing_pays() -> None:
    bench = made("nothing_pays_2k")
    own = bench.space.baseline.combination
    assert len(bench.best().combination.changes_from(own)) <= 1


def test_a_large_space_is_a_case_for_each_device() -> None:
    found = cases.cases("plain_2k", [0, 101, 102])
    assert [case.name for case in found] == ["plain_2k"] * 3
    best = [
        large_space("plain_2k", seed).samples_per_s(case.fastest)
        for seed, case in zip((0, 101, 102), found, strict=True)
    ]
    assert [case.best for case in found] == pytest.approx(best)
    assert len(set(best)) == 3


@pytest.mark.slow
def test_a_large_space_is_a_case_of_the_bench() -> None:
    (case,) = cases.cases("plain_20k")
    bench = case.bench()
    assert isinstance(bench, LargeBench)
    assert case.best == pytest.approx(bench.samples_per_s(bench.best()))
    assert case.fastest == bench.best()
    result = runs.scored(case, runs.rehearse(case, bench, "guided", "traced", seed=0))
    assert result.broken == ()
    assert result.regret < 0.05
    assert result.probes < 40
    assert result.share < 0.05


def test_the_knobs_expect_what_the_strategies_expect_on_an_accelerator() -> None:
    assert dict(zip(PRECISION.values, PRECISION.expected, strict=True)) == precision.EXPECTED
    assert dict(zip(PRECISION.values, PRECISION.ceiling, strict=True)) == precision.CEILING
    assert LOSS.expected == (1.0, linear_cross_entropy.EXPECTED)
    modes = (compilation.OFF, compilation.MODEL, compilation.TUNED, compilation.GRAPHS)
    for told, known in (
        (COMPILE.expected, compilation.EXPECTED),
        (COMPILE.ceiling, compilation.CEILING),
        (COMPILE.warm_up_s, compilation.LEAST_WARM_UP_S),
    ):
        assert told == tuple(known[mode] for mode in modes)
