"""Promise 2: the fastest plan wins, not the largest; a tie goes to less memory, then to fewer changes."""

from autofit.core.plan import Plan
from autofit.search.search import run
from tests.fakes import MIB, PRECISION, Effect, small_bench, space_of, tuning_of


def test_the_largest_batch_that_fits_loses_to_a_faster_one() -> None:
    bench = small_bench(decline=0.4, knee=16, budget_bytes=8000 * MIB)
    found = run(tuning_of(bench)).plan
    largest = max(size for size in bench.space.sizes if bench.fits(bench.space.at(found.combination, size)))
    assert found.micro_batch_size < largest
    assert bench.regret(found) < 0.03


def test_of_two_that_are_equally_fast_the_one_with_less_memory_wins() -> None:
    def found(activations: float) -> Plan:
        effects = {("precision", "bf16"): Effect(compute=0.5, activations=activations)}
        effects["precision", "tf32"] = Effect(compute=0.5)
        space = space_of((PRECISION,), (8,), 8)
        return run(tuning_of(small_bench(space=space, effects=effects, noise=0.002, drift=0.001))).plan

    assert found(activations=0.5).values["precision"] == "bf16"
    assert found(activations=1.5).values["precision"] == "tf32"


def test_nothing_is_changed_for_nothing() -> None:
    bench = small_bench(space=space_of((PRECISION,), (8,), 8), effects={})
    found = run(tuning_of(bench))
    assert found.plan == bench.space.baseline
