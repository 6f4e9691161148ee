"""How long runs take, and what time is kept for the race and the proof."""

import math

import pytest

from autofit.core.budget import Budget
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.search.time_plan import RESERVE_PROBES, RESERVE_RATIO, TimePlan
from tests.fakes import FakeBench, FakeTime, small_bench, tuning_of


def planned(bench: FakeBench, time_s: float | None = 100.0) -> tuple[TimePlan, dict[str, Trial]]:
    record: dict[str, Trial] = {}
    budget = Budget(memory_bytes=bench.budget_bytes, time_s=time_s)
    return TimePlan(tuning_of(bench, budget=budget, closing_s=4.0), record), record


def ran(bench: FakeBench, plan: Plan, record: dict[str, Trial]) -> None:
    record[plan.key] = Trial(number=len(record), plan=plan, outcome=bench.evaluate(plan, Purpose.PROBE))


def test_what_closing_takes_is_not_left() -> None:
    bench = small_bench()
    time, _ = planned(bench)
    bench.time.advance(30)
    assert time.left_s() == 66
    assert planned(bench, time_s=None)[0].left_s() == math.inf


def test_a_probe_takes_as_long_as_most_did() -> None:
    time, _ = planned(small_bench())
    assert time.probe_s() == 0
    for seconds in (2.0, 3.0, 50.0):
        time.took(seconds)
    assert time.probe_s() == 3


def test_compiling_is_no_part_of_what_a_probe_takes_again() -> None:
    time, _ = planned(small_bench())
    for seconds, warm_up_s in ((2.0, 0.0), (12.0, 9.0), (13.0, 9.0), (1.0, 5.0)):
        time.took(seconds, warm_up_s)
    assert time.probe_s() == 2.5


def test_nothing_is_kept_before_a_plan_was_measured_or_without_a_limit() -> None:
    bench = small_bench()
    time, record = planned(bench)
    time.took(2.0)
    assert time.reserve_s() == 0
    record["x"] = Trial(
        number=0, plan=bench.space.baseline, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="too large")
    )
    assert time.reserve_s() == 0
    unlimited, record = planned(bench, time_s=None)
    ran(bench, bench.space.baseline, record)
    assert unlimited.reserve_s() == 0


def test_nothing_is_kept_before_a_plan_with_the_pinned_values_was_measured() -> None:
    bench = small_bench()
    bench.space = SearchSpace(bench.space.facts.model_copy(update={"pinned": {"precision": "bf16"}}))
    time, record = planned(bench)
    time.took(2.0)
    ran(bench, bench.space.baseline, record)  # for comparison: it cannot be the answer
    assert time.reserve_s() == 0
    ran(bench, bench.space.baseline.replace(precision="bf16"), record)
    assert time.reserve_s() > 0


def test_a_race_is_kept_time_for_once_two_plans_may_win() -> None:
    bench = small_bench(noise=0.001, drift=0.0)
    time, record = planned(bench, time_s=1000.0)
    time.took(2.0)
    ran(bench, bench.space.baseline, record)
    assert time.reserve_s() == time.probe_s() + time.proof_s()
    ran(bench, bench.space.baseline.replace(optimizer="foreach"), record)
    assert time.reserve_s() == RESERVE_PROBES * 2.0
    for _ in range(3):
        time.took(90.0)
    assert time.reserve_s() == RESERVE_RATIO * 1000


def test_the_search_is_estimated_at_the_mean_time_between_probes_with_what_runs_between_them() -> None:
    bench = small_bench()
    bench.time = FakeTime()
    time, _ = planned(bench, time_s=None)
    assert time.search_left_s(4) is None  # nothing ran
    for _ in range(2):
        bench.time.advance(5.0)
        time.took(2.0)
    assert time.search_left_s(None) is None  # nothing bounds the number of probes
    assert time.search_left_s(4) == 4 * (2 + 5) / 2


@pytest.mark.parametrize(("left_s", "hurried"), [(50.0, False), (10.0, True), (-1.0, True)])
def test_what_took_longer_than_it_may_now_is_not_repeated(left_s: float, hurried: bool) -> None:
    bench = small_bench()
    bench.time = FakeTime()
    tuning = tuning_of(bench, budget=Budget(memory_bytes=1, time_s=100.0))
    tuning.clock.limit_s = 100.0
    time = TimePlan(tuning, {})
    bench.time.advance(100.0 - left_s)
    assert time.hurried(Purpose.PROBE, took_s=20.0) is hurried
