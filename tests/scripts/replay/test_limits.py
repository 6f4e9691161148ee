"""The same table under a smaller budget."""

import pytest

from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.core.outcome import Status
from scripts.bench.search.replay import limited
from scripts.bench.search.replay.table import Table, read_table
from scripts.bench.search.tables import record
from tests.fakes import MIB, OPTIMIZER, PRECISION, FakeBench, small_bench, space_of

LIMIT = 1200 * MIB


def device() -> FakeBench:
    return small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8))


@pytest.fixture(scope="module")
def whole() -> Table:
    return record(device(), "small", rounds=1)


def test_what_is_above_the_limit_is_out_of_memory_and_the_rest_as_it_was(whole: Table) -> None:
    truth = device()
    for before, after in zip(whole.entries, limited(whole, LIMIT).entries, strict=True):
        if truth.peak_bytes(before.plan) <= LIMIT:
            assert after == before
            continue
        assert after.outcome.status is Status.OUT_OF_MEMORY
        assert after.outcome.measurement is None
        assert "above the budget 1.172 GiB" in after.outcome.reason
        assert after.outcome.duration_s == before.outcome.duration_s
        assert after.blocks == ()


def test_the_best_plan_of_a_smaller_limit_fits_it(whole: Table) -> None:
    table = limited(whole, LIMIT)
    best, free = table.best(Objective()), whole.best(Objective())
    assert best is not None
    assert free is not None
    assert device().peak_bytes(best.plan) <= LIMIT < device().peak_bytes(free.plan)
    assert table.budget.memory_bytes == LIMIT


def test_a_limited_table_is_a_valid_table(whole: Table) -> None:
    table = limited(whole, LIMIT)
    assert read_table(table.to_json(), "t.json") == table


def test_a_larger_limit_is_refused(whole: Table) -> None:
    with pytest.raises(UsageError, match="was recorded under"):
        limited(limited(whole, LIMIT), LIMIT + 1)
