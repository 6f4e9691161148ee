"""Warm-up ends when times have settled, and is bounded in steps, in time and in skipped updates."""

import math

import pytest

from autofit.probing.timing import MOST_SKIPPED, SETTLED_RATIO, Pace, WindowResult, has_settled, warm_up
from tests.fakes import FakeTime

PACE = Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5)


class Steps:
    """Steps that take the given times; None is a step of one second whose update the scaler skips."""

    def __init__(self, clock: FakeTime, times: list[float | None]) -> None:
        self.clock, self.times, self.asked = clock, iter(times), list[int]()

    def __call__(self, number: int) -> WindowResult:
        self.asked.append(number)
        time_s = next(self.times)
        self.clock.advance(1.0 if time_s is None else time_s)
        return WindowResult(steps=1, seconds=time_s or 1.0, skipped=int(time_s is None), loss=None)


@pytest.mark.parametrize(
    ("times", "cycle", "settled"),
    [
        ([], 1, False),
        ([1.0], 1, False),
        ([9.0, 1.0, 1.0], 1, True),
        ([1.0, 1.0 - SETTLED_RATIO], 1, True),
        ([1.0 - SETTLED_RATIO, 1.0], 1, True),
        ([1.0, 0.99 - SETTLED_RATIO], 1, False),
        ([1.0, 1.0, 2.0], 1, False),
        ([1.0, 1.0], 3, False),
        ([9.0, 1.0, 5.0], 3, True),
    ],
)
def test_two_steps_in_a_row_or_each_batch_once(times: list[float], cycle: int, settled: bool) -> None:
    assert has_settled(times, cycle) is settled


def test_it_ends_when_two_steps_are_close(step_clock: FakeTime) -> None:
    times: list[float] = []
    assert warm_up(times, Steps(step_clock, [9.0, 1.0, 1.05, 1.0]), PACE, 1)
    assert times == [9.0, 1.0, 1.05]


def test_times_that_never_settle_are_bounded(step_clock: FakeTime) -> None:
    times: list[float] = []
    assert not warm_up(times, Steps(step_clock, [9.0, 5.0, 3.0, 2.0, 2.0]), PACE, 1)
    assert times == [9.0, 5.0, 3.0, 2.0]


def test_it_ends_when_its_time_is_over(step_clock: FakeTime) -> None:
    pace = Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0)
    times: list[float] = []
    assert not warm_up(times, Steps(step_clock, [2.5, 0.5, 1.0]), pace, 1)
    assert times == [2.5, 0.5]


def test_a_block_has_one_step_that_need_not_settle(step_clock: FakeTime) -> None:
    pace = Pace(warmup_most=1, steps_least=4, steps_most=4, seconds=0.0)
    times: list[float] = []
    assert warm_up(times, Steps(step_clock, [5.0]), pace, 1)
    assert times == [5.0]


def test_a_skipped_step_is_run_again_and_not_counted(step_clock: FakeTime) -> None:
    steps, times = Steps(step_clock, [None, None, 1.0, None, 1.0]), list[float]()
    assert warm_up(times, steps, PACE, 1)
    assert times == [1.0, 1.0]
    assert steps.asked == [0, 0, 0, 1, 1]


def test_steps_that_are_always_skipped_are_given_up(step_clock: FakeTime) -> None:
    steps, times = Steps(step_clock, [None] * 100), list[float]()
    assert PACE.patience_s == math.inf
    assert not warm_up(times, steps, PACE, 1)
    assert len(steps.asked) == MOST_SKIPPED
