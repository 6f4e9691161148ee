"""What actions cost, and how long the next may take."""

import math

import pytest

from autofit.core.budget import Budget, Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.search.ledger import BLOCK_STEPS, PROOF_STEPS, RUNAWAY_RATIO, RUNAWAY_S, Ledger, extended
from tests.fakes import FakeBench, tuning_of
from tests.search.listed import calm


def ledger_of(bench: FakeBench, time_s: float | None = None, proof_start_s: float = 0.0) -> Ledger:
    budget = Budget(memory_bytes=bench.budget_bytes, time_s=time_s)
    return Ledger(tuning_of(bench, budget=budget, proof_start_s=proof_start_s))


def test_the_time_left_is_that_of_the_budget() -> None:
    bench = calm()
    limited, open_ended = ledger_of(bench, 60.0), ledger_of(bench)
    bench.time.advance(45.0)
    assert limited.left_s() == pytest.approx(15.0)
    assert math.isinf(open_ended.left_s())


def test_a_probe_may_take_what_is_left_and_not_many_times_what_was_expected() -> None:
    bench = calm()
    assert ledger_of(bench).limit_s(None) is None
    assert ledger_of(bench).limit_s(2.0) == RUNAWAY_RATIO * 2.0 + RUNAWAY_S
    limited = ledger_of(bench, 60.0)
    assert limited.limit_s(None) == pytest.approx(60.0)
    assert limited.limit_s(2.0) == RUNAWAY_RATIO * 2.0 + RUNAWAY_S
    assert limited.limit_s(1000.0) == pytest.approx(60.0)
    bench.time.advance(100.0)
    assert limited.limit_s(None) == 0.1


def test_costs_are_learnt_from_probes_without_their_warm_up() -> None:
    bench = calm()
    ledger = ledger_of(bench, proof_start_s=7.0)
    outcome = bench.evaluate(bench.space.baseline, Purpose.PROBE)
    assert outcome.measurement is not None
    measured = outcome.measurement.model_copy(update={"startup_s": 30.0})
    beside_s, step_s = 2.0, measured.step_time_s
    ledger.probed(30.0 + beside_s + 8 * step_s, Outcome(status=Status.MEASURED, measurement=measured))
    assert ledger.probe_s() == pytest.approx(beside_s + 8 * step_s)
    assert ledger.block_s(measured) == pytest.approx(beside_s + BLOCK_STEPS * step_s)
    assert ledger.proof_s(measured) == pytest.approx(7.0 + beside_s + PROOF_STEPS * step_s)


def test_the_first_check_is_tried_at_any_time_and_later_ones_are_charged_like_the_longest() -> None:
    ledger = ledger_of(calm())
    assert ledger.check_s() == 0.0
    ledger.checked(9.0)
    ledger.checked(5.0)
    assert ledger.check_s() == 9.0


def test_time_that_is_added_for_a_while_does_not_count() -> None:
    now = [0.0]
    clock = Clock(lambda: now[0], limit_s=10.0)
    now[0] = 8.0
    with extended(clock, 5.0):
        assert clock.left_s == 7.0
        now[0] = 11.0
    assert clock.left_s == 2.0
    with extended(clock, 5.0):
        now[0] = 21.0
    assert clock.left_s == -3.0
    free = Clock(lambda: now[0])
    with extended(free, 5.0):
        assert free.limit_s is None
