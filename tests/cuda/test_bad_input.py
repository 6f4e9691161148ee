"""What cannot be used as given is refused before anything runs, in one sentence that says what to do."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.api import tune
from autofit.core.errors import NothingFits, UsageError, WorkloadError
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda import targets
from tests.cuda.targets import BATCHING, MIB, Sized, outside_bytes, own_loss, rows, sized
from tests.fakes import notes


def searched(model: nn.Module, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "step_fn": own_loss,
        "strategies": ("batching",),
        "study": ":memory:",
        "progress": False,
        "memory_budget": "4GiB",
    }
    return tune(model, rows(), **(given | changes))


@pytest.mark.parametrize("name", ["cuda:99", "cuda:-1", "cuda:x", "cuda:", "cuda:0:1", "CUDA", "gpu", "cuda 0", ""])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(UsageError) as error:
        devices.choose(name)
    text = str(error.value)
    assert repr(name) in text
    assert "available: cuda" in text
    assert "Leave it out" in text


def test_a_torch_device_is_as_good_as_its_name() -> None:
    assert devices.choose(str(torch.device("cuda", 0))).torch_device == torch.device("cuda:0")


def test_a_model_that_was_not_moved() -> None:
    """The most frequent mistake: nobody wants to tune for the CPU while a GPU is there."""
    with pytest.raises(WorkloadError) as error:
        searched(nn.Linear(4, 1))
    text = str(error.value)
    assert "the model is on the CPU" in text
    assert 'model.to("cuda")' in text
    assert "make the optimizer afterwards" in text
    assert 'device="cpu"' in text


@pytest.mark.parametrize(("at", "asked"), [("cpu", "cuda"), ("cuda", "cpu"), ("meta", "cuda")])
def test_a_model_on_another_device_than_asked(at: str, asked: str, device: Device) -> None:
    model = nn.Linear(4, 1).to(at)
    with pytest.raises(WorkloadError) as error:
        searched(model, device=asked)
    text = str(error.value)
    assert f"the model is on {at}" in text
    assert f"is to be tuned on {asked}" in text


def test_a_model_on_two_devices(device: Device) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1).cuda())
    with pytest.raises(WorkloadError, match=r"the model is on cpu, cuda:0"):
        LocalBench(Workload(model, rows(), step_fn=own_loss), device, BATCHING)


def test_a_buffer_that_stayed_behind(device: Device) -> None:
    model = Sized()
    model.register_buffer("table", torch.zeros(3))
    with pytest.raises(WorkloadError, match="cpu, cuda:0"):
        LocalBench(Workload(model, rows(), step_fn=own_loss), device, BATCHING)


def test_an_optimizer_of_another_model() -> None:
    """Made before the model was copied to the device: it would update weights that nobody trains."""
    other = nn.Linear(4, 1)
    with pytest.raises(WorkloadError):
        searched(Sized(), optimizer=torch.optim.Adam(other.parameters()))


@pytest.mark.parametrize("wanted", [0, -1, "0GiB", "much", "20 parsecs", 1.5, 0.0, -0.5, float("nan"), "900TiB", 2**60])
def test_a_budget_that_cannot_be(wanted: Any, device: Device) -> None:
    with pytest.raises(UsageError):
        device.budget(wanted, varies=False)


@pytest.mark.parametrize("name", ["PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"])
def test_an_allocator_that_keeps_no_account(name: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(UsageError, match=f"{name} is set: .* Unset it"):
        device.budget("1GiB", varies=False)


def test_an_allocator_that_is_not_torchs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    with pytest.raises(UsageError, match="found the CUDA allocator 'pluggable'; expected torch's own"):
        device.budget("1GiB", varies=False)


def test_a_budget_over_the_capacity_ends_a_search_before_it_runs_anything() -> None:
    calls = notes()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return own_loss(model, batch)

    with pytest.raises(UsageError, match=r"is more than the .* of "):
        searched(Sized(), step_fn=step, memory_budget="900TiB")
    assert calls == []


@pytest.mark.parametrize("room", [1, 30])
def test_a_budget_that_nothing_fits_into(room: int, device: Device) -> None:
    """Less than the context, or less than the weights beside it."""
    budget = room * MIB if room == 1 else outside_bytes() + room * MIB
    with pytest.raises(NothingFits) as error:
        searched(Sized(weight=16), memory_budget=budget, global_batch_size=8)
    assert "no plan fits into" in str(error.value)
    assert "Give more memory" in str(error.value)


def test_batches_that_are_on_the_device_already(device: Device) -> None:
    """Unusual, and fine: they are copied where a step could change them, and not counted twice."""
    batches = [(torch.ones(8, 4, device="cuda"),) for _ in range(2)]
    outcome = targets.evaluate(Workload(Sized(), batches, step_fn=own_loss), device)
    assert outcome.measured


def test_a_step_whose_loss_is_on_the_host(device: Device) -> None:
    """`loss.cpu()` synchronises each step: slow, and the user's own choice."""
    outcome = targets.evaluate(sized(lambda model, batch: model(batch[0]).cpu()), device)
    assert outcome.measured


def test_the_command_line_names_the_devices_that_are_there(tmp_path: Path) -> None:
    target = f"{Path(targets.__file__)}:make_sized"
    words = [sys.executable, "-m", "autofit", "tune", target, "--device", "cuda:7", "-o", str(tmp_path / "plan.yaml")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert "no device 'cuda:7' here; available: cuda" in ended.stderr
    assert "Traceback" not in ended.stderr
