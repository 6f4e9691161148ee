"""What the meter reads: the allocator's peaks and events of the steps inside, and the device's own time."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.measurement import Memory
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Counters, Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, FREE, MIB, evaluate, sized
from tests.phantom.phantom import Phantom

Cap = Callable[[int], None]


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def metered(device: Device, work: Callable[[], object], static: int = 0) -> Memory:
    with device.meter(lambda: static) as reading:
        assert reading.memory is None
        work()
    assert reading.memory is not None
    return reading.memory


def test_the_peak_is_that_of_what_was_live_at_once(device: Device) -> None:
    kept = block(40)
    memory = metered(device, lambda: (block(100), block(20)))
    assert memory.allocated_bytes == 160 * MIB
    assert memory.reserved_bytes == torch.cuda.memory_reserved()
    assert kept.numel()


def test_what_is_freed_in_between_does_not_add_up(device: Device) -> None:
    assert metered(device, lambda: [block(100).numel() for _ in range(5)]).allocated_bytes == 100 * MIB


def test_a_peak_from_before_is_forgotten(device: Device) -> None:
    block(300)
    device.release()
    memory = metered(device, lambda: block(50))
    assert memory.allocated_bytes == 50 * MIB
    assert memory.reserved_bytes == 50 * MIB


def test_segments_count_beside_what_is_live_in_them(device: Device) -> None:
    """Three small tensors in one segment each of 20 MiB and more: reserved is what the device has lost."""
    memory = metered(device, lambda: [block(7), block(7), block(7)])
    assert memory.allocated_bytes == 21 * MIB
    assert memory.reserved_bytes is not None
    assert memory.reserved_bytes >= 40 * MIB


def test_the_device_is_waited_for_before_anything_is_read(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    monkeypatch.setattr(device, "synchronize", lambda: stages.append("wait"))

    def static() -> int:
        stages.append("static")
        return 7

    with device.meter(static) as reading:
        stages.append("work")
    assert stages == ["work", "wait", "static"]
    assert reading.memory is not None
    assert reading.memory.static_bytes == 7


def test_an_optimizer_step_by_hand(device: Device) -> None:
    """Weight, momentum and gradient of 64 MiB; the activation of 80 MiB is gone when the gradient comes."""

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=False)

    found = evaluate(sized(optimizer=sgd, weight=64, held=10), device, FREE).measurement
    assert found is not None
    assert found.memory.static_bytes == 2 * 64 * MIB
    assert 3 * 64 * MIB <= found.memory.allocated_bytes < 3 * 64 * MIB + 80 * MIB + MIB
    assert found.memory.reserved_bytes is not None
    assert found.memory.reserved_bytes >= found.memory.allocated_bytes


@pytest.mark.parametrize("held", [10, 20, 40])
def test_the_peak_grows_by_what_a_sample_holds(held: int, device: Device) -> None:
    """A larger batch first: nothing of it is left in the reading of a smaller one."""
    with LocalBench(sized(held=held), device, BATCHING) as bench:
        plan = bench.briefing.space.baseline
        peaks: dict[int, Memory] = {}
        for size in (16, 8, 4):
            measurement = bench.evaluate(plan.replace(micro_batch_size=size), Purpose.PROBE).measurement
            assert measurement is not None
            peaks[size] = measurement.memory
    for size in (4, 8):
        large, small, more = peaks[2 * size], peaks[size], size * held * MIB
        assert large.allocated_bytes - small.allocated_bytes == pytest.approx(more, abs=MIB)
        assert large.judged_bytes - small.judged_bytes == pytest.approx(more, abs=4 * MIB)


def refused(device: Device) -> None:
    """An allocation that fails and is hidden."""
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * device.capacity_bytes(), dtype=torch.uint8, device="cuda")


def test_events_of_the_allocator_count_from_the_meters_beginning(device: Device) -> None:
    refused(device)
    before = device.counters()
    assert before.ooms >= 1

    def twice_refused() -> None:
        refused(device)
        refused(device)

    memory = metered(device, twice_refused)
    assert memory.swallowed_ooms == 2
    assert device.counters() == Counters(ooms=before.ooms + 2, retries=before.retries + 2)
    assert metered(device, lambda: block(1)).swallowed_ooms == 0


def test_a_retry_that_succeeds_is_counted(device: Device, cap: Cap) -> None:
    """The cache is in the way: the allocator gives it back, waits, and asks again."""

    def thrash() -> None:
        block(100)
        block(150)

    cap(200 * MIB)
    memory = metered(device, thrash)
    assert (memory.allocator_retries, memory.swallowed_ooms) == (1, 0)


class Hiding:
    """A step that tries with much memory and, refused, goes on with little: a user's own fallback."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        try:
            hidden = block(self.wanted)
        except torch.OutOfMemoryError:
            hidden = block(1)
        assert hidden.numel()
        loss: torch.Tensor = model(batch[0])
        return loss


@pytest.mark.fault("F08")
def test_an_out_of_memory_that_the_users_code_hides_means_that_it_does_not_fit(device: Device) -> None:
    outcome = evaluate(sized(Hiding(5000)), device, BATCHING)
    assert outcome.status is Status.OVER_BUDGET
    assert outcome.measurement is not None
    assert outcome.measurement.memory.swallowed_ooms > 2  # in each step, the timed ones too
    assert "out-of-memory events hidden by the model" in outcome.reason
    assert evaluate(sized(Hiding(500)), device, BATCHING).measured


class Growing:
    """A step that each time wants a little more than the cache holds, as with lengths that vary."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.steps += 1
        block(260 + 4 * self.steps)
        loss: torch.Tensor = model(batch[0])
        return loss


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_plan_that_runs_with_retries_does_not_fit(purpose: Purpose, device: Device, cap: Cap) -> None:
    """In each step the cache of the one before is in the way: it runs, at a fraction of the speed."""
    cap(500 * MIB)
    with LocalBench(sized(Growing()), device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
    assert outcome.status is Status.OVER_BUDGET, outcome
    assert outcome.measurement is not None
    assert "allocator retries" in outcome.reason
    assert "0 out-of-memory events" in outcome.reason


@pytest.mark.phantom
def test_one_allocation_that_the_driver_refuses_is_a_retry(device: Device, phantom: Phantom) -> None:
    kept = block(20)

    def refused_once() -> torch.Tensor:
        phantom.fail_allocation(1)
        return block(30)

    memory = metered(device, refused_once)
    assert (memory.allocator_retries, memory.swallowed_ooms) == (1, 0)
    assert kept.numel()


def work(launches: int) -> None:
    x = torch.ones(1024, 1024, device="cuda")
    for _ in range(launches):
        x.mul_(1.0)


def test_seconds_are_those_between_the_devices_events(device: Device) -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types here

    def timed() -> str:
        first.record()
        work(200)
        last.record()
        return "result"

    timed()  # loads what the work needs
    result, seconds = device.timed(timed)
    assert result == "result"
    inside = first.elapsed_time(last) / 1e3
    assert 0 < inside <= seconds <= 1.5 * inside + 1e-3


@pytest.mark.phantom
def test_the_phantoms_clock_makes_times_repeatable(device: Device) -> None:
    seconds = [device.timed(lambda: work(50))[1] for _ in range(3)]
    assert seconds == pytest.approx([seconds[0]] * 3)
    assert device.timed(lambda: work(100))[1] == pytest.approx(2 * seconds[0], rel=0.2)


def test_the_device_is_waited_for_at_both_edges(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    wait = device.synchronize

    def synchronize() -> None:
        stages.append("wait")
        wait()

    monkeypatch.setattr(device, "synchronize", synchronize)
    device.timed(lambda: stages.append("work"))
    assert stages == ["wait", "work", "wait"]


def test_time_on_another_stream_counts_when_it_is_the_current_one(device: Device) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch has no types here
        _, seconds = device.timed(lambda: work(50))
    assert seconds > 0


def test_what_the_work_raises_passes_through(device: Device) -> None:
    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        device.timed(fails)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_steps_are_timed(purpose: Purpose, device: Device) -> None:
    measurement = evaluate(sized(held=4), device, purpose=purpose).measurement
    assert measurement is not None
    assert all(seconds > 0 for seconds in measurement.step_times_s)


def heavy() -> Workload:
    """Matrix products that take some milliseconds on any GPU."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)), nn.Linear(2048, 4)).cuda()
    samples = torch.randn(4096, 2048), torch.randint(0, 4, (4096,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*samples), batch_size=1024)
    return Workload(model, loader, loss_fn=nn.functional.cross_entropy)


@pytest.mark.real_gpu
def test_a_larger_batch_takes_longer(device: Device) -> None:
    with LocalBench(heavy(), device, BATCHING) as bench:
        plan = bench.briefing.space.baseline
        found = [
            bench.evaluate(plan.replace(micro_batch_size=size), Purpose.PROOF).measurement for size in (256, 1024, 4096)
        ]
    times = [measurement.step_time_s for measurement in found if measurement is not None]
    assert len(times) == 3
    assert min(times) > 0
    assert times[0] < times[2]  # 256 and 1024 may both be too small to fill the device


@pytest.mark.real_gpu
def test_event_times_agree_with_the_wall_clock(device: Device) -> None:
    x = torch.randn(4096, 4096, device="cuda")

    def products() -> None:
        for _ in range(50):
            torch.mm(x, x)

    products()
    torch.cuda.synchronize()
    began = time.perf_counter()
    _, seconds = device.timed(products)
    wall = time.perf_counter() - began
    assert 0.5 * wall < seconds <= wall


@pytest.mark.real_gpu
def test_work_that_is_still_running_is_waited_for(device: Device) -> None:
    """Launching takes microseconds, the product of two large matrices milliseconds."""
    x = torch.randn(8192, 8192, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.mm(x, x)
    launched = time.perf_counter() - began
    _, seconds = device.timed(lambda: torch.mm(x, x))
    assert seconds > 2 * launched


@pytest.mark.real_gpu
def test_the_phases_of_a_proof_add_up_to_its_step(device: Device) -> None:
    measurement = evaluate(heavy(), device, purpose=Purpose.PROOF).measurement
    assert measurement is not None
    assert measurement.phases_s.keys() == {"transfer", "forward", "backward", "optimizer"}
    assert all(seconds > 0 for seconds in measurement.phases_s.values())
    assert 0.5 < sum(measurement.phases_s.values()) / measurement.step_time_s < 3
    assert measurement.phases_s["backward"] > measurement.phases_s["forward"]
