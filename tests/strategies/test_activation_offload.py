"""Activation offload: the same gradients bit for bit, less memory on the device, and reasons where it cannot help."""

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.activation_offload import ActivationOffload
from autofit.strategies.base import Facts, Offer
from autofit.strategies.batching import Batching
from autofit.strategies.checkpointing import Checkpointing
from autofit.strategies.optimizer_in_backward import OptimizerInBackward
from autofit.strategies.precision import Precision
from autofit.workloads.step import Draft, StepBatch
from tests.cpu import BF16
from tests.strategies.repeated_blocks import LOSS, Gpt

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
    with (
        pytest.raises(SpaceError, match="activation_offload='on'"),
        STRATEGY.apply(Plan(values={"activation_offload": "on"}), made),
    ):
        pass
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
from autofit.tracing.cuda.reduce_config import Chip
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
