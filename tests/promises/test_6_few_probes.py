"""Promise 6: memory is estimated first; few plans are run, and an out-of-memory error is the exception.

`scripts/bench/search.py --seeds 50` says how few, with intervals. These limits are its own, with room for one seed.
"""

import sys
from pathlib import Path

import pytest

from autofit.core.outcome import Status
from tests.promises.conftest import GLOBAL_BATCH, Tuned

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts" / "bench")]

import search_runs  # noqa: E402  # the scripts are no package of the distribution

MOST_PROBES, MOST_SHARE = 20, 0.15
TOO_LARGE = (Status.OUT_OF_MEMORY, Status.OVER_BUDGET)


@pytest.fixture(scope="module")
def results() -> dict[str, search_runs.Result]:
    """One search of each recorded table with estimates as traces give them."""
    found: dict[str, search_runs.Result] = {}
    for name in search_runs.names():
        for case in search_runs.cases(name):
            bench = search_runs.TableBench(case.table, seed=0)
            found[case.name] = search_runs.scored(case, search_runs.rehearse(case, bench, "guided", "traced", 0))
    return found


def test_on_recorded_tables_nothing_runs_out_of_memory(results: dict[str, search_runs.Result]) -> None:
    assert len(results) >= 25
    assert {name: result.out_of_memory for name, result in results.items() if result.out_of_memory} == {}


def test_on_recorded_tables_few_of_the_plans_are_run(results: dict[str, search_runs.Result]) -> None:
    assert sum(result.probes for result in results.values()) / len(results) <= MOST_PROBES
    assert sum(result.share for result in results.values()) / len(results) <= MOST_SHARE


def test_a_real_search_with_memory_to_spare_runs_nothing_that_is_too_large(tuned: Tuned) -> None:
    counts = tuned.fit.recommendation.counts
    assert counts[Status.MEASURED.value] > 1
    assert not any(counts.get(status.value) for status in TOO_LARGE)


def test_a_real_search_with_little_memory_estimates_first_and_runs_nothing_that_is_too_large(untuned: Tuned) -> None:
    own = untuned.tune(study=":memory:", time_budget="3s").recommendation.baseline.outcome.measurement
    assert own is not None
    fit = untuned.tune(memory_budget=f"{round(1.02 * own.memory.judged_bytes)}B", study=":memory:")
    counts = fit.recommendation.counts
    assert fit.plan.global_batch_size == GLOBAL_BATCH
    assert not any(counts.get(status.value) for status in TOO_LARGE), counts
    assert fit.recommendation.estimate is not None
    assert fit.recommendation.estimate.is_bounded
