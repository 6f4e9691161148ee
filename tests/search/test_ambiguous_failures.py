"""What a plan's own combination showed at other micro batches."""

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.trial_runner import settled
from tests.fakes import small_bench


def plan(size: int, precision: str = "fp32") -> Plan:
    return Plan(values={"micro_batch_size": size, "accumulation_steps": 1, "precision": precision})


def trial(size: int, status: Status, precision: str = "fp32") -> Trial:
    return Trial(number=size, plan=plan(size, precision), outcome=Outcome(status=status, reason="tried 9 GiB"))


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
