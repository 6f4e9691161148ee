"""What the strategies that save memory take from the device, as estimated and as measured."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import devices, estimators
from autofit.core.briefing import Options
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.strategies.activation_offload import HostStore
from tests.cuda.scaled import MAKERS
from tests.cuda.searches import MIB, quick

OPTIONS = Options(strategies=("batching", "activation_offload", "optimizer_in_backward"), enforce=True)

pytestmark = pytest.mark.usefixtures("trusted_values")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.mark.parametrize("name", MAKERS)
def test_offloaded_activations_leave_the_device_as_estimated(name: str) -> None:
    plain, offloaded = peaks_of("activation_offload", MAKERS[name](4))
    assert offloaded < plain


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": False}], ids=str)
def test_gradients_are_freed_as_estimated(options: dict[str, Any]) -> None:
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12)))
        data = TensorDataset(torch.zeros(64, 1024), torch.zeros(64, 1024))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    workload = autofit.Workload(model, DataLoader(data, batch_size=4), loss_fn=F.mse_loss, optimizer=optimizer)
    plain, freed = peaks_of("optimizer_in_backward", workload)
    gradient_bytes = 12 * 1024 * 1024 * 4
    assert plain - freed > gradient_bytes / 2


def peaks_of(knob: str, workload: autofit.Workload) -> list[int]:
    """Returns the peak without and with a strategy, each after a check that it is what a trace says."""
    peaks = []
    with LocalBench(workload, devices.choose("cuda"), OPTIONS) as bench:
        account, space = bench.briefing.account, SearchSpace(bench.briefing.space)
        assert account is not None
        for value in (False, True):
            plan = space.baseline.replace(**{knob: value})
            found = bench.evaluate(plan, Purpose.PROBE).measurement
            assert found is not None
            estimated = estimators.memory_use(bench.trace(plan), account)
            assert estimated.allocated_bytes == pytest.approx(found.memory.allocated_bytes, rel=0.01)
            assert estimated.reserved_bytes == pytest.approx(found.memory.reserved_bytes, rel=0.04, abs=4 * MIB)
            peaks.append(found.memory.allocated_bytes)
    return peaks


def test_saved_tensors_are_in_pinned_memory_and_come_back_on_their_device() -> None:
    store = HostStore(torch.device("cuda", 0))
    inputs = torch.randn(64, 64, device="cuda", requires_grad=True)
    with store.saving(torch.nn.Identity(), ()):
        output = torch.sin(inputs * 2)
        ((_, saved),) = store._moved.values()
        assert saved._host.is_pinned()
    assert store.held_bytes == 64 * 64 * 4
    assert saved().device == inputs.device
    torch.autograd.backward(output.sum())
    assert inputs.grad is not None
    assert inputs.grad.device == inputs.device


def test_a_view_with_gaps_is_packed_on_the_device_before_it_is_copied() -> None:
    store = HostStore(torch.device("cuda", 0))
    inputs = torch.randn(64, 3, 64, device="cuda", requires_grad=True)
    with store.saving(torch.nn.Identity(), ()):
        output = torch.sin((inputs * 2)[:, 1])
        ((_, saved),) = store._moved.values()
        ((packed, _),) = store._in_flight
        assert saved._host.is_pinned()
        assert packed.stride() == saved._host.stride() == (64, 1)
    torch.autograd.backward(output.sum())
    assert inputs.grad is not None
