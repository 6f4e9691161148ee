"""No trace on the device: tensors and generators come back bit by bit, and what does not is noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import RestoreError
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.guard import Guard
from autofit.guard.object_state import ValuePiece
from autofit.guard.tensor_state import StorageBytes
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, MIB, Sized, adam, own_loss, rows, sized
from tests.digests import digest_of
from tests.fakes import notes

# Bit patterns that comparing numbers would miss: signed zero, nans with a payload, infinities, a denormal.
ODD_BITS = [-0.0, float("nan"), float("-inf"), 1e-42]


def written(tensor: torch.Tensor, value: float) -> None:
    """Changes device memory by a copy from the host, which a phantom does for true."""
    with torch.no_grad():
        tensor.copy_(torch.full(tensor.shape, value, dtype=tensor.dtype))


class Users(nn.Module):
    """What a user may have on the device: weights, buffers, a frozen half-precision part, tied and sliced tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, 32).cuda())
        self.tied = self.weight
        self.frozen = nn.Parameter(torch.randn(1000).to(torch.bfloat16).cuda(), requires_grad=False)
        self.register_buffer("seen", torch.tensor(3).cuda())
        self.register_buffer("odd", torch.tensor(ODD_BITS).cuda())
        storage = torch.arange(100.0).cuda()
        self.register_buffer("slice", storage[10:50])
        self.register_buffer("transposed", torch.arange(12.0).reshape(3, 4).cuda().t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.mean() * self.weight).mean()


def host(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a dense device tensor, read by a copy to the host."""
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("name", ["weight", "frozen", "seen", "odd", "slice", "transposed"])
def test_each_tensor_comes_back_bit_by_bit(name: str) -> None:
    model = Users()
    tensor = getattr(model, name)
    before, digest, version = host(tensor), digest_of(model), tensor._version
    with Guard(model) as guard:
        with torch.no_grad():
            storage = tensor.untyped_storage()
            storage.copy_(torch.full((storage.nbytes(),), 7, dtype=torch.uint8).untyped_storage())
        assert host(tensor) != before
        assert any(name in found or "tied" in found for found in guard.differences())
        assert digest_of(model) != digest
    assert host(tensor) == before
    assert digest_of(model) == digest
    assert tensor._version == version
    assert getattr(model, name) is tensor


def test_tied_and_sliced_tensors_stay_tied_and_sliced() -> None:
    model = Users()
    pointers = {name: tensor.data_ptr() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    with Guard(model):
        model.tied = nn.Parameter(torch.zeros(64, 32).cuda())
        model.weight.data = torch.zeros(64, 32).cuda()
        model.slice = torch.zeros(40).cuda()
    assert model.tied is model.weight
    assert model.slice.storage_offset() == 10
    assert float(model.slice[3].cpu()) == 13.0
    # The weight's own memory was given up by the step: it has its values again, elsewhere.
    same = {name for name, tensor in model.named_buffers() if tensor.data_ptr() == pointers[name]}
    assert same == {"seen", "odd", "slice", "transposed"}


def changing(model: Any, batch: Any) -> torch.Tensor:
    """A step that writes to all there is, as training does."""
    written(model.weight, 0.5)
    written(model.seen, 9)
    written(model.odd, 0.0)
    written(model.slice, 1.0)
    model.note = torch.ones(8).cuda()
    loss: torch.Tensor = model(batch[0])
    return loss


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.fault("F26")
def test_a_run_leaves_no_bit_changed(purpose: Purpose, device: Device) -> None:
    model = Users()
    optimizer = adam([model.weight])
    model.weight.grad = torch.randn(64, 32).cuda()
    optimizer.step()
    written(optimizer.state[model.weight]["exp_avg"], 0.25)
    tensors = {
        "weight": model.weight,
        "gradient": model.weight.grad,
        "odd": model.odd,
        "slice": model.slice,
        "momentum": optimizer.state[model.weight]["exp_avg"],
    }
    before = {name: host(tensor) for name, tensor in tensors.items()}
    digest = digest_of(model, optimizer)
    with LocalBench(Workload(model, rows(), step_fn=changing, optimizer=optimizer), device, BATCHING) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, purpose).measured
        assert {name: host(tensor) for name, tensor in tensors.items()} == before
    assert {name: host(tensor) for name, tensor in tensors.items()} == before
    assert model.weight.grad is tensors["gradient"]
    assert not hasattr(model, "note")
    assert digest_of(model, optimizer) == digest


@pytest.mark.fault("F26")
def test_the_devices_random_numbers_go_on_as_if_nothing_had_happened(device: Device) -> None:
    """A dropout that ran on the device moved its generator; the seed is the user's."""
    torch.cuda.manual_seed(1234)
    torch.nn.functional.dropout(torch.ones(64, device="cuda"))
    before = torch.cuda.get_rng_state()
    seen = notes()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        torch.cuda.manual_seed_all(99)
        torch.nn.functional.dropout(torch.ones(4096, device="cuda"))
        seen.append(torch.cuda.get_rng_state())
        loss: torch.Tensor = model(batch[0])
        return loss

    with LocalBench(sized(step), device, BATCHING) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
        assert torch.equal(torch.cuda.get_rng_state(), before)
    assert len(seen) > 0
    assert all(not torch.equal(state, before) for state in seen)
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.real_gpu
def test_the_next_random_numbers_are_those_that_would_have_come(device: Device) -> None:
    torch.cuda.manual_seed(5)
    torch.rand(10, device="cuda")
    state = torch.cuda.get_rng_state()
    expected = torch.rand(100, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    with LocalBench(sized(own_loss), device, BATCHING) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF).measured
    assert torch.equal(torch.rand(100, device="cuda").cpu(), expected)


def nothing(*_: object) -> None:
    """A restore that is broken."""


BROKEN: dict[str, tuple[type, Callable[[Any], object]]] = {
    "model.weight": (StorageBytes, lambda model: written(model.weight, 3.0)),
    "model.odd": (StorageBytes, lambda model: written(model.odd, 3.0)),
    "rng.cuda": (ValuePiece, lambda model: torch.cuda.manual_seed_all(4321)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_restore_that_is_broken_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change = BROKEN[name]
    model = Users()
    state = torch.cuda.get_rng_state()
    guard = Guard(model)
    change(model)
    monkeypatch.setattr(kind, "restore", nothing)
    with pytest.raises(RestoreError) as error:
        guard.__exit__(None, None, None)
    assert name in str(error.value)
    assert "reload them from a checkpoint" in str(error.value)
    torch.cuda.set_rng_state(state)


def test_one_bit_in_the_last_chunk_of_a_large_tensor_is_noticed() -> None:
    """Large storages are compared piece by piece."""
    model = Sized(weight=130)
    last = model.weight.data[-1:]
    before = last.cpu()
    with Guard(model) as guard:
        assert guard.differences() == []
        last.copy_((before.view(torch.int32) ^ 1).view(torch.float32))
        assert guard.differences() == ["model.weight"]
    assert torch.equal(last.cpu(), before)


def test_the_snapshot_takes_no_device_memory() -> None:
    model = Sized(weight=64)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    guard = Guard(model)
    assert torch.cuda.max_memory_allocated() == before
    guard.restore()
    assert torch.cuda.max_memory_allocated() == before
    assert guard.differences() == []
    assert torch.cuda.max_memory_allocated() <= before + MIB


CONVERSIONS: dict[str, Callable[[Any], object]] = {
    "half": lambda model: model.half(),
    "to the host": lambda model: model.cpu(),
    "channels last": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_model_that_a_run_converts_comes_back_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, 3)
    expected = model.weight.detach().clone()
    model.cuda()
    live = torch.cuda.memory_allocated()
    with Guard(model):
        CONVERSIONS[name](model)
    assert model.weight.dtype is torch.float32
    assert model.weight.device.type == "cuda"
    assert model.weight.is_contiguous()
    assert torch.equal(model.weight.detach().cpu(), expected)
    assert torch.cuda.memory_allocated() == live


@pytest.mark.real_gpu
def test_the_loss_is_bit_identical_before_and_after(device: Device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 256), nn.GELU(), nn.Linear(256, 1)).cuda()
    x = torch.randn(32, 4, device="cuda")
    before = model(x).detach().cpu()
    workload = Workload(model, rows(), step_fn=lambda model, batch: model(batch[0]).square().mean())
    with LocalBench(workload, device, BATCHING) as bench:
        for purpose in Purpose:
            assert bench.evaluate(bench.briefing.space.baseline, purpose).measured
    assert torch.equal(model(x).detach().cpu(), before)
