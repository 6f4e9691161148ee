"""A bench that answers with a function."""

import pytest

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from scripts.bench.search.simulated import MemoryLog
from tests.fakes import MIB, briefing_of, opened, small_bench, tuning_of


def test_bench_answers_with_the_function_and_has_the_briefing() -> None:
    asked: list[tuple[Plan, Purpose]] = []

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        asked.append((plan, purpose))
        return Outcome(status=Status.CRASHED, reason="injected")

    fake = small_bench()
    briefing = briefing_of(fake, enforced=False)
    bench = opened(briefing, evaluate)
    assert bench.evaluate(fake.space.baseline, Purpose.PROOF).reason == "injected"
    assert asked == [(fake.space.baseline, Purpose.PROOF)]
    assert bench.briefing is briefing
    assert briefing.space == fake.space.facts
    assert (briefing.budget.memory_bytes, briefing.enforced) == (1500 * MIB, False)


def test_a_trace_fails_rather_than_answers() -> None:
    fake = small_bench()
    bench = opened(briefing_of(fake), fake.evaluate)
    with pytest.raises(AssertionError, match="without an account"):
        bench.trace(fake.space.baseline)


def test_tuning_is_of_the_bench_and_takes_other_fields() -> None:
    fake, log = small_bench(), MemoryLog()
    tuning = tuning_of(fake, log, estimators=[])
    assert (tuning.space, tuning.log, list(tuning.estimators)) == (fake.space, log, [])
    assert tuning.budget.memory_bytes == fake.budget_bytes
