"""Activation offload: the same gradients bit for bit, less memory on the device, and reasons where it cannot help."""

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.activation_offload import MOST_IN_FLIGHT, ActivationOffload, HostStore, _OnHost
from autofit.strategies.base import Facts, Offer
from autofit.strategies.batching import Batching
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.optimizer_in_backward import OptimizerInBackward
from autofit.strategies.precision import Precision
from autofit.workloads.step import Draft, StepBatch
from tests.cpu import BF16
from tests.strategies.repeated_blocks import LOSS, Gpt

CPU = torch.device("cpu")


class Watched(HostStore):
    """Notes which tensors it moves and which it keeps."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(CPU, limit_bytes)
        self.shapes: list[tuple[int, ...]] = []
        self.kept: list[tuple[int, ...]] = []

    def _save(self, tensor: torch.Tensor) -> Any:
        saved = super()._save(tensor)
        if not isinstance(saved, _OnHost):
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


STRATEGY = ActivationOffload()
ON = Plan(values={"activation_offload": True})
EVERY = [Precision(), Checkpointing(), STRATEGY, OptimizerInBackward(), Batching()]
GIB = 2**30


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2)
    )


def recurrent() -> nn.Module:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 32, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(inputs)[0]
            return output

    return Last()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "gpt": (lambda: Gpt(4), lambda: torch.randint(0, 16, (8, 12))),
    "convolutions": (convolutions, lambda: torch.randn(4, 3, 12, 12)),
    "lstm": (recurrent, lambda: torch.randn(4, 20, 8)),
}


VALUES: tuple[dict[str, Any], ...] = (
    {}, {"accumulation_steps": 2}, {"precision": "bf16"}, {"optimizer_in_backward": True}
)  # fmt: skip


def draft(model: nn.Module) -> Draft:
    return Draft(model, LOSS, torch.optim.AdamW(model.parameters(), lr=0.01), torch.device("cpu"))


def facts(**changes: Any) -> Facts:
    known = Facts(
        model=nn.Linear(4, 4),
        batch=torch.zeros(2, 4),
        optimizer=None,
        device_type="cuda",
        capabilities=frozenset({"own_memory"}),
        numerics="exact",
        training=True,
        micro_batch_size=2,
    )
    return replace(known, **changes)


def only_reason(offer: Offer) -> str:
    assert offer.knobs == ()
    return offer.refused[0].reason


def trained(model: nn.Module, plan: Plan, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    with prepare(plan, draft(model), EVERY) as step:
        for _ in range(2):
            step(StepBatch.alike(batch.chunk(plan.accumulation_steps)))
    return model.state_dict()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("values", VALUES, ids=str)
def test_weights_are_those_without_it_bit_for_bit(name: str, values: dict[str, Any]) -> None:
    if name == "lstm" and "precision" in values and not BF16:
        pytest.skip("this CPU has no recurrent kernels in bf16")
    torch.manual_seed(0)
    make, sample = MODELS[name]
    model, batch = make(), sample()
    other = copy.deepcopy(model)
    plain, ours = trained(model, Plan(values=values), batch), trained(other, ON.replace(**values), batch)
    for key, tensor in plain.items():
        assert torch.equal(tensor, ours[key]), key


@pytest.mark.parametrize("count", [2, 4])
def test_checkpointed_blocks_offload_their_inputs(count: int) -> None:
    torch.manual_seed(0)
    model, batch = Gpt(4), torch.randint(0, 16, (8, 12))
    other = copy.deepcopy(model)
    plain = trained(model, Plan(values={"checkpointed_blocks": count}), batch)
    ours = trained(other, ON.replace(checkpointed_blocks=count), batch)
    assert all(torch.equal(tensor, ours[name]) for name, tensor in plain.items())


def test_loss_is_put_back() -> None:
    made = draft(Gpt(2))
    before = made.loss
    for _ in range(2):
        with STRATEGY.apply(ON, made):
            assert made.loss.compute is not before.compute
        assert made.loss is before


def test_offers_the_knob_on_a_device_with_its_own_memory() -> None:
    (knob,) = STRATEGY.offer(facts(host_memory_bytes=64 * GIB, memory_budget_bytes=16 * GIB)).knobs
    assert (knob.values, knob.default) == ((False, True), False)


def test_reasons() -> None:
    host = STRATEGY.offer(facts(device_type="cpu", capabilities=frozenset()))
    assert "in main memory, where activations are already" in only_reason(host)
    assert host.refused[0].origin == "device"
    assert "inference" in only_reason(STRATEGY.offer(facts(training=False)))
    scarce = facts(host_memory_bytes=GIB, memory_budget_bytes=64 * GIB)
    assert "less than 5% of the memory budget of 64 GiB" in only_reason(STRATEGY.offer(scarce))


def test_what_cannot_be_applied() -> None:
    made = draft(nn.Linear(2, 2))
    with pytest.raises(SpaceError, match="activation_offload='on'"):
        STRATEGY.acts(Plan(values={"activation_offload": "on"}))
    made.optimizer = None
    with pytest.raises(SpaceError, match="inference"), STRATEGY.apply(ON, made):
        pass


def test_main_memory_that_is_too_small_ends_the_step_with_the_reason() -> None:
    made = draft(Gpt(2))
    with prepare(ON, made, [STRATEGY]) as step:
        made.host_memory_bytes = 10_000
    with STRATEGY.apply(ON, replace(made, host_memory_bytes=10_000)):
        pass
    limited = replace(made, host_memory_bytes=10_000)
    with STRATEGY.apply(ON, limited), pytest.raises(MemoryError, match="do not fit in main memory"):
        limited.loss.compute(limited.model, torch.randint(0, 16, (64, 12)))
    assert step.draft is made


TRACED = """
import torch
from torch import nn
from autofit.core.plan import Plan
from autofit.memory.peak import memory_use
from autofit.core.account import Account
from autofit.tracing import tracing
from autofit.tracing.cuda import standin
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.workloads.loss import resolve_loss
from autofit.workloads.workload import Workload

device = standin.install()
model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(256, 256), nn.GELU())))
batch = (torch.zeros(4096, 256), torch.zeros(4096, 256))
workload = Workload(model, [batch])
loss = resolve_loss(model, batch)
for value in (False, True):
    plan = Plan(values={"micro_batch_size": 4096, "activation_offload": value})
    found = tracing.trace(workload, loss, plan, batch, device, Chip())
    print(memory_use(found, Account(allocator="caching"), 2**40, True, 1).judged_bytes)
"""


@pytest.mark.slow
def test_trace_sees_that_activations_leave_the_device() -> None:
    """Each of 16 layers saves 4 MiB. With all of it in main memory, a few layers' worth is left on the device."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, check=True)
    plain, ours = map(int, done.stdout.split())
    assert plain - ours > 8 * 4 * 2**20
