"""What a shape costs that the process has not seen before, by running each fresh batch twice."""

import itertools

import pytest

from autofit.probing import timing
from autofit.probing.timing import LEAST_PAIRS, MOST_PAIRS, SECONDS, WindowResult, new_shape_s
from tests.fakes import FakeTime


class Steps:
    """A step that takes a second for each unit of its batch, and longer the first time."""

    def __init__(self, clock: FakeTime, extra_s: float, skips: tuple[int, ...] = ()) -> None:
        self.clock, self.extra_s, self.skips = clock, extra_s, skips
        self.ran: list[float] = []

    def __call__(self, batch: float) -> WindowResult:
        seconds = batch + (0.0 if batch in self.ran else self.extra_s)
        self.ran.append(batch)
        self.clock.advance(seconds)
        return WindowResult(steps=1, seconds=seconds, skipped=int(len(self.ran) in self.skips), loss=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(timing, "perf_counter", time)
    return time


@pytest.mark.parametrize(("extra_s", "found"), [(0.02, 0.02), (0.0, 0.0), (-0.01, 0.0), (0.002, 0.0)])
def test_the_extra_time_of_the_first_run_counts_unless_it_is_noise(
    clock: FakeTime, extra_s: float, found: float
) -> None:
    steps = Steps(clock, extra_s)
    sizes = (0.05 + 0.001 * at for at in itertools.count())
    assert new_shape_s(steps, sizes) == pytest.approx(found)
    assert len(steps.ran) == 2 * MOST_PAIRS


def test_slow_steps_are_few(clock: FakeTime) -> None:
    steps = Steps(clock, SECONDS)
    assert new_shape_s(steps, map(float, itertools.count(1))) == pytest.approx(SECONDS)
    assert len(steps.ran) == 2 * LEAST_PAIRS


def test_a_pair_with_a_skipped_update_does_not_count(clock: FakeTime) -> None:
    steps = Steps(clock, 1.0, skips=(1, 4))
    assert new_shape_s(steps, map(float, itertools.count(1))) == pytest.approx(1.0)
    assert len(steps.ran) == 2 * (LEAST_PAIRS + 2)
    assert new_shape_s(Steps(clock, 1.0, skips=tuple(range(1, 99))), map(float, itertools.count(1))) == 0.0


def test_too_few_fresh_batches_say_nothing(clock: FakeTime) -> None:
    assert new_shape_s(Steps(clock, 1.0), iter([1.0, 2.0])) == 0.0
