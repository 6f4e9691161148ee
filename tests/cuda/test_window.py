"""Steps that are timed together on CUDA: nothing inside a window waits for the device.

Run on a phantom GPU so far, whose kernels do nothing: autofit has not yet been run on a physical GPU. The tests marked
`real_gpu` are for that.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Device, T
from autofit.probing.local_bench import LocalBench
from autofit.probing.timing import LEAST_WINDOWS, MOST_STEPS, WindowResult, run_step, run_window
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, FREE, evaluate, own_loss, sized

Timed = Callable[[Callable[[], T]], tuple[T, float]]


def step_of(model: nn.Module, **changes: Any) -> TrainStep:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16, enabled="scaler" in changes):
            loss: torch.Tensor = model(batch).float().square().mean()
            return loss

    device = torch.device("cuda", 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return TrainStep(Plan(), Draft(model, LossRule("l", loss, False, ""), optimizer, device, **changes))


def mlp(width: int = 256) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).cuda()


def rows(width: int = 256, count: int = 64) -> StepBatch:
    return StepBatch.alike([torch.ones(count, width, device="cuda")])


def repeated(batch: StepBatch) -> Callable[[int], StepBatch]:
    return lambda number: batch


@pytest.fixture
def strict(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device; whatever waits for it between the edges of what is timed is an error."""
    timed: Timed[Any] = device.timed

    def work_of(work: Callable[[], T]) -> T:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return work()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(device, "timed", lambda work: timed(lambda: work_of(work)))
    return device


def test_reading_a_value_inside_would_be_noticed(strict: Device) -> None:
    """Or the next test would show nothing."""
    with pytest.raises(RuntimeError, match="synchronizing"):
        strict.timed(lambda: torch.ones(1, device="cuda").item())


def test_nothing_in_a_window_waits_for_the_device(strict: Device) -> None:
    ran = run_window(step_of(mlp()), repeated(rows()), 5, strict)
    assert ran.steps == 5
    assert ran.loss is not None
    assert ran.seconds > 0


def test_a_fused_optimizer_with_a_scaler_runs_without_waiting_too(strict: Device) -> None:
    """`GradScaler.step` itself reads whether it found an infinity, unless the optimizer is fused."""
    step = step_of(mlp(), scaler=torch.amp.GradScaler("cuda", init_scale=1.0))
    step.draft.optimizer = torch.optim.SGD(step.model.parameters(), lr=1e-6, fused=True)
    assert run_window(step, repeated(rows()), 3, strict).steps == 3


def test_the_device_is_waited_for_at_the_edges_only(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    wait = torch.accelerator.synchronize

    def synchronize(at: Any = None) -> None:
        log.append("wait")
        wait(at)

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    step = step_of(mlp())
    step.observe = lambda phase: log.append(phase) if phase == "forward" else None
    run_window(step, repeated(rows()), 3, device)
    assert log == ["wait", *["forward"] * 3, "wait"]


@pytest.mark.phantom
def test_a_window_takes_as_long_as_its_steps_on_the_devices_clock(device: Device) -> None:
    step = step_of(mlp())
    run_step(step, rows(), device)  # loads what the step needs
    alone = run_step(step, rows(), device).seconds
    assert run_window(step, repeated(rows()), 10, device).seconds == pytest.approx(10 * alone, rel=0.1)


@pytest.mark.phantom
@pytest.mark.parametrize("purpose", list(Purpose))
def test_short_steps_are_recorded_by_the_window(purpose: Purpose, device: Device) -> None:
    outcome = evaluate(sized(held=4), device, purpose=purpose)
    measurement = outcome.measurement
    assert measurement is not None
    assert 1 < measurement.steps_per_window <= MOST_STEPS
    assert len(measurement.step_times_s) >= LEAST_WINDOWS
    assert measurement.timed_steps == len(measurement.step_times_s) * measurement.steps_per_window
    assert type(outcome).model_validate_json(outcome.model_dump_json()) == outcome


@pytest.mark.phantom
def test_the_phantoms_windows_have_no_spread(device: Device) -> None:
    measurement = evaluate(sized(held=4), device).measurement
    assert measurement is not None
    assert measurement.spread_ratio < 0.01


class RunningOut:
    """A step that from a number on wants more than there is."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")
        return own_loss(model, batch)


def test_running_out_of_memory_in_a_window_is_an_out_of_memory(device: Device) -> None:
    with LocalBench(sized(loss := RunningOut(10**6), held=4), device, FREE) as bench:
        loss.left = 40  # the steps by themselves are done by then
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert outcome.phase == "forward"


@pytest.mark.real_gpu
def test_hidden_launches_make_a_step_no_slower(device: Device) -> None:
    """In windows a step takes at most what it takes alone, and at least half: the device has the same work."""
    step = step_of(mlp(2048))
    for _ in range(5):
        run_step(step, rows(2048, 1024), device)
    alone = sorted(run_step(step, rows(2048, 1024), device).seconds for _ in range(9))[4]
    ran: WindowResult = run_window(step, repeated(rows(2048, 1024)), 50, device)
    assert 0.5 * alone < ran.seconds / ran.steps < 1.05 * alone


@pytest.mark.real_gpu
def test_windows_agree_with_each_other(device: Device) -> None:
    torch.manual_seed(0)
    samples = torch.randn(4096, 2048), torch.randint(0, 4, (4096,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples), batch_size=256)
    workload = Workload(mlp(2048), loader, loss_fn=nn.functional.cross_entropy)
    measurement = evaluate(workload, device, BATCHING, purpose=Purpose.PROOF).measurement
    assert measurement is not None
    assert measurement.steps_per_window > 1
    assert measurement.spread_ratio < 0.05
