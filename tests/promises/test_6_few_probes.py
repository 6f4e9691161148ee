"""Promise 6: memory is estimated first; few plans are run, and an out-of-memory error is the exception.

`python -m scripts.bench.search --seeds 50` reports how few, with intervals. These limits are those of that benchmark,
with room for one seed.
"""

import pytest

from autofit.core.outcome import Status
from scripts.bench.search import cases, runs
from scripts.bench.search.replay import TableBench
from tests.promises.conftest import GLOBAL_BATCH, Tuned

MOST_PROBES, MOST_SHARE = 20, 0.15
TOO_LARGE = (Status.OUT_OF_MEMORY, Status.OVER_BUDGET)


@pytest.fixture(scope="module")
def results() -> dict[str, runs.Result]:
    """One search of each recorded table with estimates as traces give them."""
    found: dict[str, runs.Result] = {}
    for name in cases.names():
        for case in cases.cases(name):
            bench = TableBench(case.table, seed=0)
            found[case.name] = runs.scored(case, runs.rehearse(case, bench, "guided", "traced", 0))
    return found


def test_on_recorded_tables_nothing_runs_out_of_memory(results: dict[str, runs.Result]) -> None:
    assert len(results) >= 25
    assert {name: result.out_of_memory for name, result in results.items() if result.out_of_memory} == {}


def test_on_recorded_tables_few_of_the_plans_are_run(results: dict[str, runs.Result]) -> None:
    assert sum(result.probes for result in results.values()) / len(results) <= MOST_PROBES
    assert sum(result.share for result in results.values()) / len(results) <= MOST_SHARE


def test_a_real_search_with_memory_to_spare_runs_nothing_that_is_too_large(tuned: Tuned) -> None:
    counts = tuned.fit.answer.counts
    assert counts[Status.MEASURED.value] > 1
    assert not any(counts.get(status.value) for status in TOO_LARGE)


@pytest.mark.usefixtures("whole_search")
def test_a_real_search_with_little_memory_estimates_first_and_runs_nothing_that_is_too_large(untuned: Tuned) -> None:
    own = untuned.tune(study=":memory:", time_budget="3s").answer.baseline.outcome.measurement
    assert own is not None
    fit = untuned.tune(memory_budget=f"{round(1.02 * own.memory.judged_bytes)}B", study=":memory:")
    counts = fit.answer.counts
    assert fit.plan.global_batch_size == GLOBAL_BATCH
    assert not any(counts.get(status.value) for status in TOO_LARGE), counts
    assert fit.answer.estimate is not None
    assert fit.answer.estimate.is_bounded
