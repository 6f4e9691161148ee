"""How fast a training is under its plan, with a clock of the test's own."""

import pytest

from autofit.core.objective import Objective
from autofit.integrations.reached import ReachedThroughput
from autofit.integrations.work_clock import WorkClock
from tests.conformance.test_exporters import OWN, recommendation
from tests.fakes import FakeTime


def train(time: FakeTime, steps: int, inside_s: float, between_s: float, first_s: float = 0.0) -> ReachedThroughput:
    """Two micro batches of four samples a step; the first five take `first_s` longer. 80 samples/s are promised."""
    plan = OWN.replace(micro_batch_size=4, accumulation_steps=2)
    found = ReachedThroughput(recommendation(plan), plan.global_batch_size, plan.accumulation_steps, clock=time)
    for number in range(2 * steps):
        found.begin()
        time.advance(inside_s / 2 + (first_s if number < 10 else 0.0))
        found.end()
        time.advance(between_s / 2)
    return found


def test_steps_after_the_first_five_count() -> None:
    found = train(FakeTime(), 25, inside_s=0.1, between_s=0.1, first_s=9.0)
    assert found.promised_per_s == pytest.approx(80)
    assert found.samples_per_s == pytest.approx(40, rel=1e-3)
    assert found.shortfall() == (
        "the training reached 40 samples/s, and the plan promised 80. An optimizer step took 100 ms instead of 100 ms; "
        "100 ms were spent between its micro batches, on the loader, callbacks and logging"
    )


def test_a_training_as_fast_as_its_plan_needs_no_words() -> None:
    assert train(FakeTime(), 25, inside_s=0.1, between_s=0.004).shortfall() == ""
    assert train(FakeTime(), 25, inside_s=0.1, between_s=0.006).shortfall() != ""


def test_what_is_neither_a_pass_nor_an_update_is_overhead() -> None:
    time = FakeTime()
    found = ReachedThroughput(recommendation(OWN.replace(micro_batch_size=4)), 4, clock=time, work=WorkClock(time))
    assert found.overhead_s is None
    for number in range(25):
        found.begin()
        time.advance(0.02)
        found.work.begin()
        time.advance(0.1 if number >= 5 else 9.0)
        found.work.end()
        time.advance(0.03)
        found.end()
        time.advance(0.05)
    assert found.overhead_s == pytest.approx(0.1)
    assert found.shortfall().endswith(". Of each step, 100 ms are overhead of the trainer, batches included")


def test_no_overhead_is_said_of_an_accelerator() -> None:
    given = recommendation(OWN)
    queued = given.environment.model_copy(update={"device_type": "cuda"})
    time = FakeTime()
    found = ReachedThroughput(given.model_copy(update={"environment": queued}), 8, clock=time, work=WorkClock(time))
    for _ in range(25 * OWN.accumulation_steps):
        found.begin()
        found.work.begin()
        time.advance(0.1)
        found.work.end()
        found.end()
    assert found.samples_per_s is not None
    assert found.overhead_s is None


def test_a_short_training_says_nothing() -> None:
    found = train(FakeTime(), 24, inside_s=0.5, between_s=0.5)
    assert found.samples_per_s == pytest.approx(8)
    assert found.shortfall() == ""
    assert train(FakeTime(), 5, inside_s=0.5, between_s=0.5).samples_per_s is None


def test_a_pause_is_not_counted() -> None:
    time = FakeTime()
    found = train(time, 25, inside_s=0.1, between_s=0.1)
    before = found.samples_per_s
    found.pause()
    time.advance(100.0)
    for _ in range(2):
        found.begin()
        time.advance(0.05)
        found.end()
        time.advance(0.05)
    assert found.samples_per_s == pytest.approx(before)


def test_the_promise_is_on_the_scale_of_the_race_unless_that_counts_tokens() -> None:
    given = recommendation(OWN).model_copy(update={"rate_per_s": 70.0})
    assert ReachedThroughput(given, 8).promised_per_s == 70.0
    tokens = given.model_copy(update={"objective": Objective(unit="tokens")})
    assert ReachedThroughput(tokens, 8).promised_per_s == pytest.approx(80)
