"""Why a plan is not run."""

from autofit.core.estimate import Estimate
from autofit.feasibility import Feasibility
from autofit.search.screening import reason_to_skip
from tests.fakes import Fixed, small_bench

BENCH = small_bench()


def reason(value_bytes: int, **changes: str) -> str | None:
    estimate = Estimate(value_bytes=value_bytes, lower_bytes=value_bytes, basis="by hand")
    feasibility = Feasibility(BENCH.space, BENCH.budget_bytes, [Fixed(estimate)])
    return reason_to_skip(BENCH.space.baseline.replace(**changes), BENCH.space, feasibility)


def test_a_plan_that_is_not_in_the_space_is_skipped_whatever_its_memory() -> None:
    found = reason(2**40, precision="int3") or ""
    assert found.startswith("not in the search space: ")
    assert "int3" in found


def test_a_plan_that_is_refused_for_its_memory_is_skipped() -> None:
    assert (reason(2**40) or "").startswith("needs at least 1 TiB, above the budget of")


def test_any_other_plan_is_run() -> None:
    assert reason(2**20) is None
    assert reason(2**20, precision="bf16") is None
