"""What a chip can do, by its generation: strategies ask for it by name."""

from collections.abc import Iterator

import pytest
import torch

from autofit import devices
from autofit.devices import host_memory
from autofit.devices.base import Device
from tests.cuda.device_process import Process
from tests.cuda.targets import evaluate, sized
from tests.phantom.phantom import Phantom

GIB = 2**30
ALWAYS = {"cudnn", "fp16", "channels_last", "foreach", "fused", "own_memory", "tuned kernels", "cuda graphs"}


@pytest.mark.phantom
def test_an_older_generation_has_neither_bf16_nor_tf32() -> None:
    with Process(PHANTOM_CAPABILITY="7.5", PHANTOM_NAME="Phantom of a test") as process:
        read = process.ask("read")
    assert set(read["capabilities"]) - {"compiled code"} == ALWAYS
    assert read["name"] == "Phantom of a test"


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    """A process on a chip that computes in the machine's main memory; torch thinks that it has 80 GiB of its own."""
    with Process(PHANTOM_UNIFIED="1", PHANTOM_TOTAL_MIB="81920") as process:
        yield process


@pytest.mark.phantom
@pytest.mark.fault("F39")
def test_memory_that_is_shared_with_the_machine_is_the_machines(shared: Process) -> None:
    read = shared.ask("read")
    assert read["capacity"] == min(80 * GIB, host_memory.capacity())
    assert 0 < read["available"] <= read["capacity"]
    assert read["caveats"] == []


@pytest.mark.phantom
def test_files_that_the_system_has_read_are_available_memory(
    device: Device, phantom: Phantom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's "free" leaves them out: on a machine that has run for a day it is next to nothing."""
    monkeypatch.setattr(type(device), "is_integrated", property(lambda _: True))
    phantom.misreport_free(2**20)
    told = host_memory.available()
    assert told is not None
    assert device.available_bytes() >= min(told // 2, 2 * GIB)


@pytest.mark.phantom
@pytest.mark.skipif(host_memory.capacity() > 60 * GIB, reason="the machine has about as much memory as the phantom")
def test_the_limit_is_that_of_the_budget_although_torch_counts_another_capacity(shared: Process) -> None:
    """The allocator takes a fraction of the 80 GiB; a budget of 4 GiB is more of what the machine has."""
    outcome = shared.ask("evaluate", held=100, memory="4GiB")["outcome"]
    assert outcome["status"] == "measured"
    memory = outcome["measurement"]["memory"]
    # What is in use there changes with each file that is read: a context's most is counted.
    assert memory["footprint_bytes"] - memory["reserved_bytes"] == 1536 * 2**20
    assert shared.ask("evaluate", held=600, memory="4GiB")["outcome"]["status"] == "out of memory"


def test_they_agree_with_torch(device: Device) -> None:
    found = device.capabilities()
    assert found >= ALWAYS
    assert ("bf16" in found) is torch.cuda.is_bf16_supported(including_emulation=False)
    assert ("tf32" in found) is (torch.cuda.get_device_capability()[0] >= 8)


def test_the_device_is_the_one_with_the_index(device: Device) -> None:
    assert device.torch_device == torch.device("cuda", torch.cuda.current_device())
    assert devices.choose("cuda:0").torch_device == torch.device("cuda", 0)
    assert devices.choose().type == "cuda"
    assert type(device).count() == torch.cuda.device_count()
    assert device.name() == torch.cuda.get_device_name()


def test_versions_say_what_a_measurement_depends_on(device: Device) -> None:
    found = device.versions()
    assert found["cuda"] == torch.version.cuda
    assert "cudnn" in found
    assert "allocator" not in found, "this process has torch's default settings"


def test_nothing_is_known_against_a_device_of_ones_own(device: Device) -> None:
    assert evaluate(sized(), device).measured
    assert device.caveats() == ()
