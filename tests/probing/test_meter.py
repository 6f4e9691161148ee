"""Timing warms up until it settles, counts only real updates, and splits a step into its phases."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.plan import Plan
from autofit.probing import meter
from autofit.probing.meter import MOST_SKIPPED, Pace, time_phases, time_steps
from autofit.probing.window import run_step
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.fakes import FakeTime
from tests.probing.queueing import Overflowing as OverflowingAt
from tests.probing.queueing import Queueing, forever, step_on

CPU = devices.choose("cpu")
BATCH = StepBatch.of([torch.ones(2, 1)])
PACE = Pace(warmup_least=1, warmup_most=4, steps_least=3, steps_most=8, seconds=0.5)


def step_of(step_clock: FakeTime, times: Iterator[float], **changes: Any) -> TrainStep:
    """A step whose forward passes take the given times."""
    model = nn.Linear(1, 1)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        step_clock.advance(next(times))
        return model(batch).mean()

    optimizer = changes.pop("optimizer", torch.optim.SGD(model.parameters(), lr=0.0))
    return TrainStep(Plan(), Draft(model, LossRule("l", loss, False, ""), optimizer, torch.device("cpu"), **changes))


def timed(step_clock: FakeTime, times: list[float], pace: Pace = PACE, cycle: int = 1, **changes: Any) -> meter.Lap:
    return time_steps(step_of(step_clock, iter(times), **changes), lambda number: BATCH, CPU, pace, cycle)


def test_warm_up_ends_when_two_steps_are_close(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [9.0, 1.0, 1.05] + [1.0] * 8)
    assert lap.warmup_s == pytest.approx([9.0, 1.0, 1.05])
    assert lap.steps_s == pytest.approx([1.0] * 3)  # the three least ones take longer than the half second
    assert lap.settled


def test_warm_up_that_never_settles_is_bounded_and_said(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [9.0, 5.0, 3.0, 2.0] + [1.0] * 8)
    assert lap.warmup_s == pytest.approx([9.0, 5.0, 3.0, 2.0])
    assert not lap.settled


def test_measuring_goes_on_for_the_time_given_and_not_beyond_the_most(step_clock: FakeTime) -> None:
    assert len(timed(step_clock, [0.125] * 20).steps_s) == 4
    assert len(timed(step_clock, [0.01] * 20).steps_s) == 8


def test_a_block_has_a_fixed_number_of_steps(step_clock: FakeTime) -> None:
    pace = Pace(warmup_least=1, warmup_most=1, steps_least=4, steps_most=4, seconds=0.0)
    lap = timed(step_clock, [5.0, 1.0, 2.0, 3.0, 4.0], pace)
    assert lap.warmup_s == [5.0]
    assert lap.steps_s == [1.0, 2.0, 3.0, 4.0]
    assert lap.settled


def test_where_batches_differ_each_runs_as_often_as_the_others(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [9.0, 1.0, 2.0, 3.0] + [0.01, 0.1, 0.02, 0.1] * 8, cycle=4)
    assert lap.warmup_s == [9.0, 1.0, 2.0, 3.0]
    assert lap.settled  # steps on other batches are no measure of it
    assert lap.steps_s == pytest.approx([0.01, 0.1, 0.02, 0.1] * 2)
    longer = Pace(warmup_least=1, warmup_most=4, steps_least=5, steps_most=10, seconds=1.0)
    assert len(timed(step_clock, [0.01] * 40, longer, cycle=4).steps_s) == 12


def test_where_batches_differ_a_cycle_is_completed_however_long_it_takes(step_clock: FakeTime) -> None:
    pace = Pace(warmup_least=1, warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0)
    lap = timed(step_clock, [20.0, 4.0, 8.0, 4.0, 4.0] + [1.0] * 8, pace, cycle=4)
    assert lap.warmup_s == [20.0]
    assert not lap.settled  # three of the batches have not been seen before they are measured
    assert lap.steps_s == [4.0, 8.0, 4.0, 4.0]


def test_the_start_is_judged_by_steps_on_the_same_batches(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [3.0, 0.2, 0.2, 0.2] + [1.0, 0.2, 0.2, 0.2] * 8, cycle=4)
    assert lap.startup_s == pytest.approx(2.0)


def test_a_skipped_step_is_run_again_on_its_batches(step_clock: FakeTime) -> None:
    step = step_of(step_clock, iter([1.0] * 40), scaler=torch.amp.GradScaler("cpu"))
    overflowing = Overflowing(step.model, 0)
    asked: list[int] = []

    def batch_of(number: int) -> StepBatch:
        overflowing.left = 1 if len(asked) == 6 else 0
        asked.append(number)
        return BATCH

    lap = time_steps(step, batch_of, CPU, PACE, cycle=4)
    assert lap.skipped == 1
    assert asked == [0, 1, 2, 3, 0, 1, 2, 2, 3]


def test_making_the_batch_is_not_timed(step_clock: FakeTime) -> None:
    def batch_of(number: int) -> StepBatch:
        step_clock.advance(100.0)
        return BATCH

    lap = time_steps(step_of(step_clock, iter([1.0] * 20)), batch_of, CPU, PACE)
    assert lap.steps_s == pytest.approx([1.0] * len(lap.steps_s))


def test_the_start_is_what_the_warm_up_took_beyond_as_many_measured_steps(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [9.0, 1.0, 1.05] + [1.0] * 8)
    assert lap.startup_s == pytest.approx(9.0 + 1.0 + 1.05 - 3 * 1.0)
    assert timed(step_clock, [0.9, 0.9] + [1.0] * 8).startup_s == 0.0


class Overflowing:
    """Puts an infinity into the gradient of the first steps."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.left = steps
        next(model.parameters()).register_hook(self)

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        return gradient * float("inf") if self.left >= 0 else gradient


def test_steps_that_the_scaler_skips_are_neither_warm_up_nor_measured(step_clock: FakeTime) -> None:
    # A skipped step takes 1 s, a real one 5 s.
    step = step_of(step_clock, iter([1.0] * 6 + [5.0] * 20), scaler=torch.amp.GradScaler("cpu"))
    Overflowing(step.model, 6)
    lap = time_steps(step, lambda number: BATCH, CPU, PACE)
    assert lap.skipped == 6
    assert lap.warmup_s == [5.0, 5.0]
    assert set(lap.steps_s) == {5.0}
    assert len(lap.steps_s) == 3
    assert lap.startup_s == lap.skipped_s == 6.0  # they trained nothing


def test_a_skip_in_the_middle_is_left_out(step_clock: FakeTime) -> None:
    step = step_of(step_clock, iter([5.0, 5.0, 5.0, 1.0, 5.0, 5.0]), scaler=torch.amp.GradScaler("cpu"))
    overflowing = Overflowing(step.model, 0)
    calls = iter(range(100))

    def batch_of(number: int) -> StepBatch:
        overflowing.left = 1 if next(calls) == 3 else 0
        return BATCH

    lap = time_steps(step, batch_of, CPU, PACE)
    assert lap.steps_s == [5.0, 5.0, 5.0]
    assert lap.skipped == 1


def test_a_scaler_that_never_finds_a_scale_is_given_up(step_clock: FakeTime) -> None:
    step = step_of(step_clock, iter([1.0] * 100), scaler=torch.amp.GradScaler("cpu"))
    Overflowing(step.model, 1000)
    lap = time_steps(step, lambda number: BATCH, CPU, PACE)
    assert lap.steps_s == []
    assert lap.skipped == MOST_SKIPPED


def test_a_step_tells_time_update_and_loss(step_clock: FakeTime) -> None:
    step = step_of(step_clock, iter([2.0, 3.0]))
    ran = run_step(step, BATCH, CPU)
    assert (ran.seconds, ran.updated) == (2.0, True)
    with torch.no_grad():
        assert ran.loss == pytest.approx(float(step.model(BATCH.parts[0]).mean()))


def test_inference_has_no_loss(step_clock: FakeTime) -> None:
    assert timed(step_clock, [1.0] * 20, optimizer=None).loss is None


def test_the_lap_has_the_last_loss(step_clock: FakeTime) -> None:
    assert timed(step_clock, [1.0] * 20).loss is not None


def test_phases_add_up_to_the_step_and_go_to_their_names(step_clock: FakeTime) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    pauses = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        step_clock.advance(pauses["forward"])
        return model(batch).mean()

    def pause(phase: str) -> None:
        step_clock.advance(pauses[phase])

    model.register_full_backward_hook(lambda *_: pause("backward"))
    optimizer.register_step_pre_hook(lambda *_: pause("optimizer"))
    step = TrainStep(Plan(), Draft(model, LossRule("l", loss, False, ""), optimizer, torch.device("cpu")))
    two = StepBatch.of([torch.ones(2, 1, requires_grad=True)] * 2)
    phases = time_phases(step, lambda number: two, CPU)
    assert phases == pytest.approx({"transfer": 0.0, "forward": 2.0, "backward": 4.0, "optimizer": 0.5})
    assert sum(phases.values()) == pytest.approx(run_step(step, two, CPU).seconds)
    assert step.observe is None


def test_phases_are_those_of_all_batches_where_these_differ(step_clock: FakeTime) -> None:
    times = [1.0, 2.0, 3.0, 6.0]
    phases = time_phases(step_of(step_clock, iter(times)), lambda number: BATCH, CPU, cycle=4)
    assert phases["forward"] == pytest.approx(3.0)


def test_the_observer_is_gone_after_a_failure(step_clock: FakeTime) -> None:
    step = step_of(step_clock, iter([1.0]))
    with pytest.raises(StopIteration):
        time_phases(step, lambda number: BATCH, CPU)
    assert step.observe is None


def queued(step_clock: FakeTime, times: Iterable[float], cycle: int = 1, **changes: Any) -> meter.Lap:
    device = Queueing(step_clock)
    return time_steps(step_on(device, times, **changes), lambda number: BATCH, device, PACE, cycle)


def test_short_steps_on_a_queue_are_timed_together(step_clock: FakeTime) -> None:
    lap = queued(step_clock, forever(0.01), host_s=0.002)
    assert lap.warmup_s == pytest.approx([0.012] * 3)  # by themselves; the last one tells how wide a window is
    assert lap.steps_per_window == 9
    assert lap.steps_s == pytest.approx([0.01 + 0.002 / 9] * 3)
    assert (lap.timed_steps, lap.cycle, lap.settled) == (27, 1, True)


def test_long_steps_on_a_queue_are_timed_as_on_the_host(step_clock: FakeTime) -> None:
    lap = queued(step_clock, forever(0.125))
    assert lap.steps_per_window == 1
    assert lap.steps_s == pytest.approx([0.125] * 4)


SHORT_S = 2**-6
"""A step of which 7 make a window: exact on a clock that adds seconds up."""


def test_windows_that_turn_out_short_join_the_warm_up(step_clock: FakeTime) -> None:
    lap = queued(step_clock, chain([0.9, 0.9, 0.04], forever(0.01)))
    assert lap.warmup_s == pytest.approx([0.9, 0.9, 0.04] + [0.01] * 3)
    assert (lap.steps_per_window, len(lap.steps_s)) == (10, 3)
    assert lap.startup_s == pytest.approx(2 * 0.89 + 0.03)


def test_a_stalled_step_does_not_make_steps_look_long(step_clock: FakeTime) -> None:
    lap = queued(step_clock, chain([SHORT_S, SHORT_S, 4.0], forever(SHORT_S)))
    assert (lap.steps_per_window, lap.steps_s) == (7, [SHORT_S] * 3)


def test_one_disturbed_window_does_not_decide(step_clock: FakeTime) -> None:
    before = 3 + 10  # in the second window
    lap = queued(step_clock, chain([SHORT_S] * before, [4.0], forever(SHORT_S)))
    assert lap.steps_s == [SHORT_S, (6 * SHORT_S + 4.0) / 7, SHORT_S]


def test_where_batches_differ_a_window_has_all_of_them(step_clock: FakeTime) -> None:
    device, asked = Queueing(step_clock), list[int]()

    def batch_of(number: int) -> StepBatch:
        asked.append(number)
        return BATCH

    cycling = (0.01 * (1 + number % 4) for number in range(3, 1000))
    times = chain([0.01, 0.02, 0.03, 0.04], [0.01], [0.01 * (1 + number % 4) for number in range(200)], cycling)
    lap = time_steps(step_on(device, times), batch_of, device, PACE, cycle=4)
    assert (lap.steps_per_window, lap.cycle) == (12, 1)
    assert lap.steps_s == pytest.approx([0.025] * 3)
    assert asked == [*range(4), 0, *range(36)]


def test_where_batches_differ_long_steps_are_timed_one_by_one(step_clock: FakeTime) -> None:
    lap = queued(step_clock, [0.5, 0.2, 0.2, 0.3] * 2, cycle=4)
    assert (lap.steps_per_window, lap.cycle, lap.steps_s) == (1, 4, pytest.approx([0.5, 0.2, 0.2, 0.3]))


def test_a_window_with_a_skipped_update_does_not_count_and_is_run_again(step_clock: FakeTime) -> None:
    device, asked = Queueing(step_clock), list[int]()

    def batch_of(number: int) -> StepBatch:
        asked.append(number)
        return BATCH

    step = step_on(device, forever(SHORT_S), scaler=torch.amp.GradScaler("cpu"))
    OverflowingAt(step.model, [3 + 7 + 4, 3 + 7 + 6])
    lap = time_steps(step, batch_of, device, PACE)
    assert (lap.skipped, lap.skipped_s) == (2, 2 * SHORT_S)
    assert lap.steps_s == [SHORT_S] * 3
    assert asked == [0, 1, 0, *range(7), *range(7, 14), *range(7, 14), *range(14, 21)]


def test_a_scaler_that_finds_no_scale_is_given_up_in_windows_too(step_clock: FakeTime) -> None:
    device = Queueing(step_clock)
    step = step_on(device, forever(SHORT_S), scaler=torch.amp.GradScaler("cpu"))
    OverflowingAt(step.model, range(3, 1000))
    lap = time_steps(step, lambda number: BATCH, device, PACE)
    assert lap.steps_s == []
    assert MOST_SKIPPED <= lap.skipped < MOST_SKIPPED + lap.steps_per_window


def test_a_loss_that_is_ruined_in_a_window_is_noticed_at_its_edge(step_clock: FakeTime) -> None:
    device, run = Queueing(step_clock), iter(range(1000))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        device.launch(0.0, SHORT_S)
        return model(batch).mean() * (float("nan") if next(run) >= 3 + 7 + 5 else 1.0)

    step = step_on(device, (), loss=LossRule("l", loss, False, ""))
    lap = time_steps(step, lambda number: BATCH, device, PACE)
    assert lap.ruined == 3 + 2 * 7  # the last step of its window
    assert lap.loss != lap.loss  # the last one is not a number


def test_a_sign_of_life_comes_before_each_window_and_not_in_it(step_clock: FakeTime) -> None:
    device = Queueing(step_clock)
    step = step_on(device, forever(SHORT_S))
    time_steps(step, lambda number: BATCH, device, PACE, beat=lambda: device.log.append("beat"))
    alone, together = ["beat", "wait", "step", "wait"], ["beat", "wait", *["step"] * 7, "wait"]
    assert device.log == alone * 3 + together * 3


@pytest.mark.parametrize("of", ["live", "retries"])
def test_steps_that_keep_memory_or_thrash_are_timed_one_by_one(of: str, step_clock: FakeTime) -> None:
    """Hundreds of them would not fit: that would be an out-of-memory, and not what it is."""
    device = Queueing(step_clock)

    def batch_of(number: int) -> StepBatch:
        setattr(device, of, getattr(device, of) + 2**20)
        return BATCH

    lap = time_steps(step_on(device, forever(SHORT_S)), batch_of, device, PACE)
    assert (lap.steps_per_window, len(lap.steps_s)) == (1, PACE.steps_most)


def test_a_window_is_timed_however_little_patience_there_is(step_clock: FakeTime) -> None:
    pace = Pace(warmup_least=1, warmup_most=4, steps_least=5, steps_most=10, seconds=1.0, patience_s=0.0)
    device = Queueing(step_clock)
    lap = time_steps(step_on(device, forever(SHORT_S)), lambda number: BATCH, device, pace)
    assert (len(lap.steps_s), lap.steps_per_window) == (1, 7)
