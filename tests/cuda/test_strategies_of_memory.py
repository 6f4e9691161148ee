"""What the strategies that save memory take from the device, as estimated and as measured."""

import pytest
import torch

from autofit import devices, estimators
from autofit.core.briefing import Options
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.strategies.host_store import HostStore
from tests.cuda.scaled import MAKERS
from tests.cuda.searches import MIB, quick

OPTIONS = Options(strategies=("batching", "activation_offload", "optimizer_in_backward"), enforce=True)

pytestmark = pytest.mark.usefixtures("trusted_values")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.mark.parametrize("name", MAKERS)
def test_offloaded_activations_leave_the_device_as_estimated(name: str) -> None:
    with LocalBench(MAKERS[name](4), devices.choose("cuda"), OPTIONS) as bench:
        account, space = bench.briefing.account, SearchSpace(bench.briefing.space)
        assert account is not None
        plain, offloaded = (space.baseline.replace(activation_offload=value) for value in (False, True))
        measured = {plan: bench.evaluate(plan, Purpose.PROBE).measurement for plan in (plain, offloaded)}
        for plan, found in measured.items():
            assert found is not None
            estimated = estimators.memory_use(bench.trace(plan), account)
            assert estimated.allocated_bytes == pytest.approx(found.memory.allocated_bytes, rel=0.01)
            assert estimated.reserved_bytes == pytest.approx(found.memory.reserved_bytes, rel=0.04, abs=4 * MIB)
        less = [found.memory.allocated_bytes for found in measured.values() if found is not None]
        assert less[1] < less[0]


def test_saved_tensors_are_in_pinned_memory_and_come_back_on_their_device() -> None:
    store = HostStore(torch.device("cuda", 0))
    inputs = torch.randn(64, 64, device="cuda", requires_grad=True)
    with store.saving(torch.nn.Identity(), ()):
        output = torch.sin(inputs * 2)
        ((_, saved),) = store._moved.values()
        assert saved._host.is_pinned()
    assert store.held_bytes == 64 * 64 * 4
    assert saved.tensor().device == inputs.device
    torch.autograd.backward(output.sum())
    assert inputs.grad is not None
    assert inputs.grad.device == inputs.device
