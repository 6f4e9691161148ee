"""Steps of a window are timed together: nothing inside waits for the device, and nothing of it is lost at the edges.

The first half is one window; the second is how the meter times by windows.
"""

import math
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.devices.cuda import Cuda
from autofit.probing.timing import (
    MOST_KEPT_BYTES,
    MOST_SKIPPED,
    MOST_STEPS,
    WINDOW_S,
    Lap,
    Pace,
    run_window,
    steps_per_window,
    time_steps,
    watch_allocator,
)
from autofit.workloads.loss import LossRule
from autofit.workloads.step import StepBatch
from tests.fakes import FakeTime
from tests.probing.queueing import BATCH, Overflowing, Queueing, Reads, forever, step_on

PACE = Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5)
SHORT_S = 2**-6
"""A step of which 7 make a window: exact on a clock that adds seconds up."""


@pytest.fixture
def device(step_clock: FakeTime) -> Queueing:
    return Queueing(step_clock)


def test_nothing_in_a_window_waits_for_the_device(device: Queueing) -> None:
    step = step_on(device, forever(0.01))
    with Reads(device.log):
        ran = run_window(step, lambda number: BATCH, 5, device)
    assert device.log == ["wait", *["step"] * 5, "wait", "read"]
    assert ran.steps == 5
    assert ran.seconds == pytest.approx(0.05)


def test_the_scale_is_read_at_the_edges_only(device: Queueing, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_on(device, forever(0.01), scaler=torch.amp.GradScaler("cpu"))
    scaler = step.draft.scaler
    assert scaler is not None
    scale = scaler.get_scale

    def get_scale() -> float:
        device.log.append("scale")
        return scale()

    monkeypatch.setattr(scaler, "get_scale", get_scale)
    run_window(step, lambda number: BATCH, 3, device)
    assert device.log == ["scale", "wait", *["step"] * 3, "wait", "scale"]


def test_launches_are_hidden_as_in_a_training_and_those_of_a_step_alone_are_not(device: Queueing) -> None:
    step = step_on(device, forever(0.010), host_s=0.002)
    alone = run_window(step, lambda number: BATCH, 1, device)
    assert alone.seconds == pytest.approx(0.012)
    together = run_window(step, lambda number: BATCH, 10, device)
    assert together.seconds / 10 == pytest.approx(0.0102)


def test_a_host_that_is_slower_than_the_device_is_the_pace(device: Queueing) -> None:
    ran = run_window(step_on(device, forever(0.001), host_s=0.004), lambda number: BATCH, 100, device)
    assert ran.seconds / 100 == pytest.approx(0.004, rel=0.01)


@pytest.mark.parametrize(
    ("step_s", "cycle", "steps"),
    [
        (WINDOW_S, 1, 1),
        (5.0, 4, 1),
        (0.06, 1, 2),
        (0.01, 1, 10),
        (0.01, 4, 12),
        (0.06, 4, 4),
        (1e-4, 1, MOST_STEPS),
        (1e-4, 3, 99),
        (5e-324, 1, MOST_STEPS),
        (0.0, 1, 1),  # a clock that stands still
        (math.nan, 1, 1),
    ],
)
def test_a_window_is_as_wide_as_short_steps_need(device: Queueing, step_s: float, cycle: int, steps: int) -> None:
    assert steps_per_window(device, step_s, cycle) == steps
    assert steps_per_window(devices.choose("cpu"), step_s, cycle) == 1


def test_the_devices_say_whether_they_queue_their_work() -> None:
    assert Cuda.queues_work
    assert not devices.choose("cpu").queues_work


@pytest.mark.parametrize(("numbers", "skipped"), [((), 0), ((2,), 1), ((0, 3, 4), 3), (range(5), 5)])
def test_how_many_updates_were_skipped_is_told_by_the_scale(
    device: Queueing, numbers: tuple[int, ...], skipped: int
) -> None:
    step = step_on(device, forever(0.01), scaler=torch.amp.GradScaler("cpu"))
    Overflowing(step.model, numbers)
    ran = run_window(step, lambda number: BATCH, 5, device)
    assert ran.skipped == skipped
    assert ran.updated == (not skipped)


def test_a_scale_that_has_become_nothing_means_that_all_were_skipped(device: Queueing) -> None:
    step = step_on(device, forever(0.01), scaler=torch.amp.GradScaler("cpu", init_scale=5e-45))
    Overflowing(step.model, range(5))
    assert run_window(step, lambda number: BATCH, 5, device).skipped == 5


@pytest.mark.parametrize(("last", "ruined"), [(math.nan, True), (math.inf, True), (3.0, False)])
def test_a_loss_that_is_not_finite_is_noticed_at_the_edge(device: Queueing, last: float, ruined: bool) -> None:
    losses = iter([1.0, last])

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).mean() * 0 + next(losses)
        return loss

    ran = run_window(step_on(device, (), loss=LossRule("l", loss, False, "")), lambda number: BATCH, 2, device)
    assert ran.loss == pytest.approx(last, nan_ok=True)
    assert ran.ruined is ruined


def test_no_loss_but_the_last_is_kept(device: Queueing) -> None:
    alive: list[weakref.ref[Any]] = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert sum(each() is not None for each in alive) <= 1
        result: torch.Tensor = model(batch).mean()
        alive.append(weakref.ref(result.untyped_storage()))
        return result

    run_window(step_on(device, (), loss=LossRule("l", loss, False, "")), lambda number: BATCH, 5, device)
    assert len(alive) == 5


def test_the_outputs_of_an_inference_are_not_kept(device: Queueing) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def output(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal most
        result = torch.ones(3)
        alive.append(weakref.ref(result))
        most = max(most, sum(each() is not None for each in alive))
        return result

    ran = run_window(
        step_on(device, (), loss=LossRule("l", output, False, ""), optimizer=None), lambda number: BATCH, 5, device
    )
    assert (ran.steps, ran.loss, ran.ruined) == (5, None, False)
    assert most == 1


def test_a_batch_is_made_when_its_step_begins_and_let_go_when_it_ends(device: Queueing) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def made(number: int) -> StepBatch:
        assert not any(each() is not None for each in alive)
        part = torch.ones(2, 1)
        alive.append(weakref.ref(part))
        return StepBatch.alike([part])

    run_window(step_on(device, forever(0.01)), made, 4, device)
    assert len(alive) == 4


def test_a_failure_in_a_window_passes_through_with_its_phase(device: Queueing) -> None:
    step = step_on(device, [0.01] * 3)
    assert step.draft.optimizer is not None
    step.draft.optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(KeyError("mine")))
    with pytest.raises(KeyError, match="mine"):
        run_window(step, lambda number: BATCH, 3, device)
    assert step.phase == "optimizer"


@pytest.mark.parametrize("place", ["loss", "batch"])
def test_a_users_stop_iteration_does_not_end_a_window_early(device: Queueing, place: str) -> None:
    def made(number: int) -> StepBatch:
        return BATCH if place == "loss" or number < 2 else next(iter(()))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        times.append(1)
        result: torch.Tensor = model(batch).mean()
        return result if place == "batch" or len(times) < 3 else next(iter(()))

    times: list[int] = []
    with pytest.raises(StopIteration):
        run_window(step_on(device, (), loss=LossRule("l", loss, False, "")), made, 5, device)


def test_what_keeps_memory_or_makes_the_allocator_retry_may_not_run_many_times(device: Queueing) -> None:
    repeatable = watch_allocator(device)
    assert repeatable()
    device.live += MOST_KEPT_BYTES  # the losses of a log, say
    assert repeatable()
    device.live += 1
    assert not repeatable()
    repeatable = watch_allocator(device)
    device.retries += 1
    assert not repeatable()


def queued(step_clock: FakeTime, times: Iterable[float], cycle: int = 1, **changes: Any) -> Lap:
    device = Queueing(step_clock)
    return time_steps(step_on(device, times, **changes), lambda number: BATCH, device, PACE, cycle)


def noting(asked: list[int]) -> Callable[[int], StepBatch]:
    def batch(number: int) -> StepBatch:
        asked.append(number)
        return BATCH

    return batch


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
    cycling = (0.01 * (1 + number % 4) for number in range(3, 1000))
    times = chain([0.01, 0.02, 0.03, 0.04], [0.01], [0.01 * (1 + number % 4) for number in range(200)], cycling)
    lap = time_steps(step_on(device, times), noting(asked), device, PACE, cycle=4)
    assert (lap.steps_per_window, lap.cycle) == (12, 1)
    assert lap.steps_s == pytest.approx([0.025] * 3)
    assert asked == [*range(4), 0, *range(36)]


def test_where_batches_differ_long_steps_are_timed_one_by_one(step_clock: FakeTime) -> None:
    lap = queued(step_clock, [0.5, 0.2, 0.2, 0.3] * 2, cycle=4)
    assert (lap.steps_per_window, lap.cycle) == (1, 4)
    assert lap.steps_s == pytest.approx([0.5, 0.2, 0.2, 0.3])


@pytest.mark.fault("F45")
def test_a_window_with_a_skipped_update_does_not_count_and_is_run_again(step_clock: FakeTime) -> None:
    device, asked = Queueing(step_clock), list[int]()
    step = step_on(device, forever(SHORT_S), scaler=torch.amp.GradScaler("cpu"))
    Overflowing(step.model, [3 + 7 + 4, 3 + 7 + 6])
    lap = time_steps(step, noting(asked), device, PACE)
    assert (lap.skipped, lap.skipped_s) == (2, 2 * SHORT_S)
    assert lap.steps_s == [SHORT_S] * 3
    assert asked == [0, 1, 0, *range(7), *range(7, 14), *range(7, 14), *range(14, 21)]


def test_a_scaler_that_finds_no_scale_is_given_up_in_windows_too(step_clock: FakeTime) -> None:
    device = Queueing(step_clock)
    step = step_on(device, forever(SHORT_S), scaler=torch.amp.GradScaler("cpu"))
    Overflowing(step.model, range(3, 1000))
    lap = time_steps(step, lambda number: BATCH, device, PACE)
    assert lap.steps_s == []
    assert MOST_SKIPPED <= lap.skipped < MOST_SKIPPED + lap.steps_per_window


def test_a_loss_that_is_ruined_in_a_window_is_noticed_at_its_edge(step_clock: FakeTime) -> None:
    device, run = Queueing(step_clock), iter(range(1000))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        device.launch(0.0, SHORT_S)
        loss: torch.Tensor = model(batch).mean() * (float("nan") if next(run) >= 3 + 7 + 5 else 1.0)
        return loss

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
    pace = Pace(warmup_most=4, steps_least=5, steps_most=10, seconds=1.0, patience_s=0.0)
    device = Queueing(step_clock)
    lap = time_steps(step_on(device, forever(SHORT_S)), lambda number: BATCH, device, pace)
    assert (len(lap.steps_s), lap.steps_per_window) == (1, 7)
