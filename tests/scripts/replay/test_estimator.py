"""Estimates from a table: exact, biased, late, and where the table has no peak."""

import pytest

from autofit.core.plan import Plan
from scripts.bench.search.replay import TableEstimator, limited, peaks_of
from scripts.bench.search.replay.table import Table
from scripts.bench.search.tables import record
from tests.fakes import MIB, OPTIMIZER, PRECISION, FakeBench, small_bench, space_of


def device() -> FakeBench:
    return small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8))


@pytest.fixture(scope="module")
def whole() -> Table:
    return record(device(), "small", rounds=1)


def at(bench: FakeBench, size: int, **values: str) -> Plan:
    return bench.space.at(bench.space.baseline.combination.replace(**values), size)


def test_an_exact_estimate_is_the_peak_with_narrow_bounds(whole: Table) -> None:
    bench = device()
    estimate = TableEstimator(peaks_of(whole)).estimate(at(bench, 32))
    true = bench.peak_bytes(at(bench, 32))
    assert estimate is not None
    assert estimate.value_bytes == true
    assert estimate.lower_bytes == pytest.approx(0.99 * true, rel=1e-6)
    assert estimate.upper_bytes == pytest.approx(1.01 * true, rel=1e-6)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_biased_estimate_is_wrong_and_its_bounds_are_not(whole: Table, factor: float) -> None:
    bench = device()
    estimate = TableEstimator(peaks_of(whole), factor, error_ratio=0.12).estimate(at(bench, 32))
    true = bench.peak_bytes(at(bench, 32))
    assert estimate is not None
    assert estimate.value_bytes == pytest.approx(factor * true, rel=1e-6)
    assert (estimate.lower_bytes or 0) < true < (estimate.upper_bytes or 0)


def test_a_late_estimate_is_there_once_it_was_estimated(whole: Table) -> None:
    bench = device()
    late = TableEstimator(peaks_of(whole), at_once=False)
    own, other, larger = at(bench, 32), at(bench, 32, precision="bf16"), at(bench, 64, precision="bf16")
    assert late.estimate(own) is None
    late.refine(bench.space.baseline, [at(bench, size) for size in bench.space.sizes])
    assert late.estimate(own) is not None
    assert late.estimate(other) is None
    late.refine(other)
    assert late.estimate(other) is not None
    assert late.estimate(larger) is None
    late.refine_all([larger])
    assert late.estimate(larger) is not None


def test_the_peak_of_what_did_not_fit_is_drawn_from_what_did(whole: Table) -> None:
    bench, limit = device(), 1200 * MIB
    known, true = peaks_of(limited(whole, limit)), peaks_of(whole)
    drawn = {key: peak for key, peak in known.items() if true[key] > limit}
    assert drawn
    assert all(peak >= 1.05 * limit for peak in drawn.values())
    assert known[at(bench, 16).key] == pytest.approx(true[at(bench, 16).key], rel=0.1)
    assert all(known[key] == true[key] for key in known.keys() - drawn.keys())


def test_what_nothing_is_known_of_is_not_estimated(whole: Table) -> None:
    tiny = peaks_of(limited(whole, 540 * MIB))
    bench = device()
    assert at(bench, 64).key not in tiny
    assert TableEstimator(tiny).estimate(at(bench, 64)) is None
