"""What the device loses to this process: the allocator's segments, and what CUDA takes beside them."""

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.measurement import Memory
from autofit.devices.base import Device
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, MIB, evaluate, sized
from tests.fakes import notes
from tests.phantom.phantom import Phantom

GIB = 2**30


def read(device: Device, mebibytes: int) -> Memory:
    with device.meter(lambda: 0) as reading:
        torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")
    assert reading.memory is not None
    return reading.memory


def test_the_three_numbers_are_in_order_and_the_footprint_is_judged(device: Device) -> None:
    memory = read(device, 100)
    assert memory.reserved_bytes is not None
    assert memory.footprint_bytes is not None
    assert memory.allocated_bytes <= memory.reserved_bytes < memory.footprint_bytes
    assert memory.judged_bytes == memory.footprint_bytes
    assert memory.judged_by.startswith("footprint")


def test_the_context_is_part_of_it(device: Device) -> None:
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    memory = read(device, 100)
    assert memory.footprint_bytes is not None
    assert memory.reserved_bytes is not None
    assert memory.footprint_bytes - memory.reserved_bytes == pytest.approx(context, abs=32 * MIB)


@pytest.mark.phantom
def test_it_is_what_the_device_says_is_used(device: Device, phantom: Phantom) -> None:
    """On a phantom nothing else uses the device, and all that is used is known."""
    kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    memory = read(device, 10)
    assert memory.footprint_bytes == pytest.approx(total - free + 20 * MIB, abs=12 * MIB)
    assert kept.numel()


@pytest.mark.parametrize("mebibytes", [50, 500])
def test_it_grows_with_the_segments_alone(mebibytes: int, device: Device) -> None:
    small = read(device, 20)
    device.release()
    large = read(device, 20 + mebibytes)
    assert large.footprint_bytes is not None
    assert small.footprint_bytes is not None
    assert large.footprint_bytes - small.footprint_bytes == mebibytes * MIB


def test_memory_that_is_no_longer_reserved_counts_at_its_peak(device: Device) -> None:
    """The driver is asked when the steps are done: by then the peak is over."""

    def work() -> None:
        torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
        device.release()
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")

    with device.meter(lambda: 0) as reading:
        work()
    assert reading.memory is not None
    assert reading.memory.footprint_bytes is not None
    assert reading.memory.footprint_bytes > 600 * MIB


@pytest.mark.phantom
@pytest.mark.parametrize("gib", [2, 4])
def test_what_others_held_before_is_not_of_this_process(gib: int, phantom: Phantom) -> None:
    alone = read(devices.choose("cuda"), 100).footprint_bytes
    phantom.take(gib * GIB)
    beside = read(devices.choose("cuda"), 100).footprint_bytes
    assert alone is not None
    assert beside is not None
    # A context may be up to 1.5 GiB large: without NVML less than that cannot be told from another process.
    assert alone <= beside < alone + 1100 * MIB


@pytest.mark.phantom
def test_another_process_does_not_make_a_plan_exceed_its_budget(phantom: Phantom) -> None:
    phantom.take(3 * GIB)
    device = devices.choose("cuda")
    options = BATCHING.model_copy(update={"memory_budget": "2GiB"})
    assert evaluate(sized(held=20), device, options).measured


@pytest.mark.real_gpu
def test_workspaces_of_the_libraries_show(device: Device) -> None:
    """A convolution loads cuDNN and its kernels, which live outside the allocator."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 7), nn.ReLU(), nn.Conv2d(64, 64, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = [torch.randn(8, 3, 64, 64)] * 2
    workload = Workload(model.cuda(), images, step_fn=lambda model, x: model(x).square().mean())
    measurement = evaluate(workload, device).measurement
    assert measurement is not None
    memory = measurement.memory
    assert memory.footprint_bytes is not None
    assert memory.reserved_bytes is not None
    assert memory.footprint_bytes - memory.reserved_bytes > 100 * MIB
    assert memory.footprint_bytes <= device.capacity_bytes()


def test_a_cublas_workspace_is_in_the_segments(device: Device) -> None:
    """The first product of a process takes it; `release` gives it back."""
    device.release()
    before = torch.cuda.memory_allocated()
    x = torch.randn(512, 512, device="cuda")
    y = x @ x
    assert torch.cuda.memory_allocated() - before > x.nbytes + y.nbytes
    del x, y
    device.release()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.real_gpu
@pytest.mark.parametrize("held", [20, 100])
def test_it_agrees_with_what_the_driver_lost_meanwhile(held: int, device: Device) -> None:
    seen = notes()

    def loss(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = model(batch[0])
        free, total = torch.cuda.mem_get_info()
        seen.append(total - free)
        return result

    measurement = evaluate(sized(loss, held=held), device).measurement
    assert measurement is not None
    assert measurement.memory.footprint_bytes == pytest.approx(max(seen), rel=0.1, abs=64 * MIB)
