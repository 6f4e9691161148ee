"""What a plan's own combination showed at other micro batches."""

import pytest

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.trial_runner import doubted, settled
from tests.fakes import small_bench


def plan(size: int, precision: str = "fp32") -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "precision": precision})


def trial(size: int, status: Status, precision: str = "fp32") -> Trial:
    return Trial(number=size, plan=plan(size, precision), outcome=Outcome(status=status, reason="tried 9 GiB"))


@pytest.mark.fault("F09")
def test_a_failure_that_stays_ambiguous_is_one_of_memory_only_where_a_smaller_size_ran() -> None:
    bench = small_bench()
    ran = Trial(number=0, plan=plan(4), outcome=bench.evaluate(bench.space.baseline, Purpose.PROBE))
    assert ran.outcome.measured
    ambiguous = Outcome(status=Status.AMBIGUOUS, reason="cuDNN error")
    assert settled([trial(4, Status.OUT_OF_MEMORY)], plan(8), ambiguous) is ambiguous
    found = settled([ran], plan(8), ambiguous)
    assert found.status is Status.OUT_OF_MEMORY
    assert "failed twice where a smaller micro batch ran" in found.reason
    assert "cuDNN error" in found.reason
    crash = Outcome(status=Status.CRASHED, reason="killed")
    assert settled([ran], plan(8), crash) is crash


BUDGET = 1000


def short(peak: int, **events: int) -> Outcome:
    """Returns the outcome of a plan that ran, with refused allocations, up to this peak."""
    ran = small_bench().evaluate(plan(4), Purpose.PROBE)
    assert ran.measurement is not None
    memory = ran.measurement.memory.model_copy(update={"judged_bytes": peak, **events})
    measurement = ran.measurement.model_copy(update={"memory": memory})
    return Outcome(status=Status.OVER_BUDGET, reason="2 allocator retries", measurement=measurement)


@pytest.mark.parametrize("events", [{"allocator_retries": 1}, {"swallowed_ooms": 1}])
@pytest.mark.fault("F37")
def test_memory_that_was_refused_far_below_the_budget_is_in_doubt(events: dict[str, int]) -> None:
    found = doubted([], plan(4), short(500, **events), BUDGET)
    assert (found.status, found.measurement) == (Status.AMBIGUOUS, None)
    assert "2 allocator retries; but its peak of 500 B is far below the budget of 1000 B" in found.reason
    near = short(950, **events)
    assert doubted([], plan(4), near, BUDGET) is near


def test_a_peak_above_the_budget_is_not_in_doubt() -> None:
    above = short(1200)
    ran = Trial(number=0, plan=plan(8), outcome=small_bench().evaluate(plan(8), Purpose.PROBE))
    assert ran.outcome.measured
    assert doubted([ran], plan(4), above, BUDGET) is above


@pytest.mark.fault("F37")
def test_a_lack_of_memory_is_in_doubt_where_a_larger_micro_batch_of_the_same_combination_ran() -> None:
    refused = Outcome(status=Status.OUT_OF_MEMORY, reason="tried 9 GiB")
    ran = Trial(number=0, plan=plan(8), outcome=small_bench().evaluate(plan(8), Purpose.PROBE))
    assert doubted([ran], plan(4), refused, BUDGET).status is Status.AMBIGUOUS
    assert "a micro batch of 8 ran" in doubted([ran], plan(4), short(950, allocator_retries=1), BUDGET).reason
    assert doubted([ran], plan(8), refused, BUDGET) is refused
    assert doubted([ran], plan(4, "bf16"), refused, BUDGET) is refused
    assert doubted([trial(8, Status.OUT_OF_MEMORY)], plan(4), refused, BUDGET) is refused
