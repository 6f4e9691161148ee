"""Timing warms up until it settles, counts only real updates, and splits a step into its phases."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.plan import Plan
from autofit.probing import timing
from autofit.probing.timing import MOST_SKIPPED, Pace, run_step, time_phases, time_steps
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.fakes import FakeTime

CPU = devices.choose("cpu")
BATCH = StepBatch.of([torch.ones(2, 1)])
PACE = Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5)


def step_of(step_clock: FakeTime, times: Iterator[float], **changes: Any) -> TrainStep:
    """A step whose forward passes take the given times."""
    model = nn.Linear(1, 1)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        step_clock.advance(next(times))
        loss: torch.Tensor = model(batch).mean()
        return loss

    optimizer = changes.pop("optimizer", torch.optim.SGD(model.parameters(), lr=0.0))
    return TrainStep(Plan(), Draft(model, LossRule("l", loss, False, ""), optimizer, torch.device("cpu"), **changes))


def timed(step_clock: FakeTime, times: list[float], pace: Pace = PACE, cycle: int = 1, **changes: Any) -> timing.Lap:
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
    pace = Pace(warmup_most=1, steps_least=4, steps_most=4, seconds=0.0)
    lap = timed(step_clock, [5.0, 1.0, 2.0, 3.0, 4.0], pace)
    assert lap.warmup_s == [5.0]
    assert lap.steps_s == [1.0, 2.0, 3.0, 4.0]
    assert lap.settled


def test_where_batches_differ_each_runs_as_often_as_the_others(step_clock: FakeTime) -> None:
    lap = timed(step_clock, [9.0, 1.0, 2.0, 3.0] + [0.01, 0.1, 0.02, 0.1] * 8, cycle=4)
    assert lap.warmup_s == [9.0, 1.0, 2.0, 3.0]
    assert lap.settled  # steps on other batches are no measure of it
    assert lap.steps_s == pytest.approx([0.01, 0.1, 0.02, 0.1] * 2)
    longer = Pace(warmup_most=4, steps_least=5, steps_most=10, seconds=1.0)
    assert len(timed(step_clock, [0.01] * 40, longer, cycle=4).steps_s) == 12


def test_where_batches_differ_a_cycle_is_completed_however_long_it_takes(step_clock: FakeTime) -> None:
    pace = Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0)
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
        next(model.parameters()).register_hook(self)  # type: ignore[no-untyped-call]  # torch has no types here

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        return gradient * float("inf") if self.left >= 0 else gradient


@pytest.mark.fault("F45")
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


@pytest.mark.fault("F45")
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


@pytest.mark.fault("F45")
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
        loss: torch.Tensor = model(batch).mean()
        return loss

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
