"""HostStore: what is moved to main memory and what stays, once each, with the waits that make streams safe."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofit.strategies import host_store
from autofit.strategies.host_store import MOST_IN_FLIGHT, HostStore

CPU = torch.device("cpu")


class Watched(HostStore):
    """Notes which tensors it moves and which it keeps."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(CPU, limit_bytes)
        self.shapes: list[tuple[int, ...]] = []
        self.kept: list[tuple[int, ...]] = []

    def _save(self, tensor: torch.Tensor) -> Any:
        saved = super()._save(tensor)
        if isinstance(saved, host_store._Held):
            self.kept.append(tuple(tensor.shape))
        return saved

    def _move(self, tensor: torch.Tensor) -> Any:
        self.shapes.append(tuple(tensor.shape))
        return super()._move(tensor)


def saved(compute: Callable[[], torch.Tensor], model: nn.Module, batch: Any = ()) -> Watched:
    """Runs a forward and a backward pass and returns what was moved."""
    store = Watched()
    with store.saving(model, batch):
        loss = compute()
    torch.autograd.backward(loss)
    return store


def test_activations_are_moved_and_parameters_buffers_and_the_batch_stay() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1000))
    batch = torch.randn(16, 32)
    store = saved(lambda: model(batch).square().mean(), model, (batch,))
    # Saved: the inputs of the norm and of the last layer, which is also Tanh's output, and the output.
    assert sorted(store.shapes) == [(16, 64), (16, 64), (16, 1000)]
    assert (16, 32) in store.kept
    assert (64,) in store.kept


def test_what_several_operators_save_is_moved_once() -> None:
    model = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    inputs = torch.randn(16, 32, requires_grad=True)

    def attend() -> torch.Tensor:
        hidden = torch.tanh(inputs)
        return torch.stack([layer(hidden).sum() for layer in model]).sum()

    assert saved(attend, model).shapes == [(16, 32)]


def test_small_and_expanded_tensors_stay() -> None:
    model = nn.Linear(8, 8)
    inputs = torch.randn(4, 8, requires_grad=True)
    scale = torch.randn(1, 512, requires_grad=True)
    store = saved(lambda: model(torch.tanh(inputs)).sum() + (scale.sin().expand(64, 512) * scale.cos()).sum(), model)
    assert (4, 8) in store.kept  # 128 bytes
    assert (64, 512) in store.kept  # 128 KiB of elements in 2 KiB of memory
    assert (64, 512) not in store.shapes


def test_bytes_are_counted_and_given_back() -> None:
    model, store = nn.Linear(64, 64), Watched()
    with store.saving(model, ()):
        loss = torch.tanh(model(torch.randn(16, 64))).square().sum()
        assert store.held_bytes > 0
    expected = 16 * 64 * 4
    assert store.held_bytes == sum(4 * a * b for a, b in store.shapes) >= expected
    torch.autograd.backward(loss)
    del loss
    gc.collect()
    assert store.held_bytes == 0


def test_main_memory_is_not_exceeded() -> None:
    model, store = nn.Linear(64, 64), Watched(limit_bytes=12_000)
    with store.saving(model, ()):  # 9,600 bytes may be used, and 8,192 are
        torch.tanh(model(torch.randn(16, 64)))
    with pytest.raises(MemoryError, match=r"do not fit in main memory, of which 9.375 KiB"), store.saving(model, ()):
        torch.tanh(model(torch.randn(64, 64)))
    gc.collect()
    assert store.held_bytes == 0


def test_strides_are_kept() -> None:
    store = Watched()
    image = torch.randn(2, 8, 6, 6, requires_grad=True).to(memory_format=torch.channels_last)
    with store.saving(nn.Identity(), ()):
        output: Any = torch.sin(image * 2)
        sine = output.grad_fn._saved_self
    assert store.shapes == [(2, 8, 6, 6)]
    assert sine.stride() == image.stride()
    assert torch.equal(sine, image * 2)


def test_change_in_place_of_a_tensor_that_stayed_is_an_error_as_in_autograd() -> None:
    """With hooks on saved tensors, torch does not check versions: the gradient would be silently wrong."""
    model = nn.Linear(64, 64)
    inputs = torch.randn(16, 64, requires_grad=True)
    for store in (None, Watched()):
        if store is None:
            loss = model(inputs * 1).sum()
        else:
            with store.saving(model, ()):
                loss = model(inputs * 1).sum()
        with torch.no_grad():
            model.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.backward(loss)


def test_value_is_that_at_the_time_of_saving() -> None:
    model, store = nn.Identity(), Watched()
    inputs = torch.randn(16, 64, requires_grad=True)
    with store.saving(model, ()):
        hidden = inputs * 1
        expected = torch.cos(hidden.detach().clone())
        loss = torch.sin(hidden).sum()
        with torch.no_grad():
            hidden.zero_()  # its memory is reused
    torch.autograd.backward(loss)
    assert torch.equal(inputs.grad if inputs.grad is not None else torch.empty(0), expected)


def test_a_graph_can_be_used_twice() -> None:
    model, store = nn.Linear(64, 64), Watched()
    with store.saving(model, ()):
        loss = torch.tanh(model(torch.randn(16, 64))).sum()
    torch.autograd.backward(loss, retain_graph=True)
    assert model.weight.grad is not None
    first = model.weight.grad.clone()
    torch.autograd.backward(loss)
    assert torch.equal(model.weight.grad, 2 * first)


def test_sparse_and_wrapped_tensors_stay() -> None:
    store = Watched()
    sparse = torch.eye(64).to_sparse()
    dense = torch.randn(64, 64, requires_grad=True)
    with store.saving(nn.Identity(), (sparse,)):
        loss = torch.sparse.mm(sparse, torch.tanh(dense)).sum()
    torch.autograd.backward(loss)
    assert dense.grad is not None
    assert torch.allclose(dense.grad, 1 - torch.tanh(dense.detach()).square(), atol=1e-6)


class Marker:
    """Something that a node of a graph holds."""


class FakeStream:
    """A stream that notes what it is asked to do."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.log.append("recorded")
        return f"copy {self.log.count('recorded')}"

    def __enter__(self) -> "FakeStream":
        self.log.append(f"on {self.name}")
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(f"off {self.name}")


def test_memory_is_released_only_after_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    compute, side = FakeStream(log, "compute"), FakeStream(log, "side")
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch, "Stream", lambda device: side)
    store = HostStore(CPU)
    device_tensors = [torch.randn(64, 64) for _ in range(MOST_IN_FLIGHT + 2)]
    for tensor in device_tensors:
        store._land(MOST_IN_FLIGHT - 1)
        store._in_flight.append((tensor, store._copy_beside(tensor, torch.empty_like(tensor))))
    once = ["side waits for compute", "on side", "off side", "recorded"]
    assert log[: 4 * MOST_IN_FLIGHT] == once * MOST_IN_FLIGHT
    assert log[4 * MOST_IN_FLIGHT :] == ["compute waits for copy 1", *once, "compute waits for copy 2", *once]
    assert len(store._in_flight) == MOST_IN_FLIGHT
    log.clear()
    store._land(0)
    assert log == [f"compute waits for copy {number}" for number in range(3, MOST_IN_FLIGHT + 3)]


def test_nothing_is_left_in_flight_after_an_error() -> None:
    model, store = nn.Linear(64, 64), Watched()
    with pytest.raises(RuntimeError, match="shapes"), store.saving(model, ()):
        torch.tanh(model(torch.randn(16, 64))) @ torch.randn(3, 3)
    gc.collect()
    assert (len(store._in_flight), store._moved, store.held_bytes) == (0, {}, 0)


def test_fake_tensors_have_no_limit() -> None:
    """A trace takes no main memory, and may be of a device in another machine."""
    store = Watched(limit_bytes=10)
    with FakeTensorMode():
        model = nn.Linear(64, 64)
        with store.saving(model, ()):
            loss = F.gelu(model(torch.randn(16, 64))).sum()
        torch.autograd.backward(loss)
    assert store.shapes


def test_a_graph_that_is_dropped_is_freed_at_once() -> None:
    """A result that its own operator saves must not keep that operator alive."""
    gc.collect()
    gc.disable()
    try:
        for size in (4, 64):  # one that stays, one that is moved
            store, hidden = Watched(), torch.randn(size, size, requires_grad=True)
            with store.saving(nn.Identity(), ()):
                output = torch.tanh(hidden)
            marker = Marker()
            node: Any = output.grad_fn
            node.metadata["marker"] = marker
            held = weakref.ref(marker)
            del output, node, marker
            assert held() is None
            assert store.held_bytes == 0
    finally:
        gc.enable()
