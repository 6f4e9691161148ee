"""The simulated memory counts what is alive, and refuses what does not fit."""

import pytest
import torch
from torch import nn

from autofit.core.outcome import Status
from autofit.failures.classify import classify
from autofit.failures.evidence import collect
from tests.fakes.memory import CappedMemory

KIB = 1024


def test_live_storages_count_once_and_until_they_die() -> None:
    with CappedMemory() as memory:
        one = torch.zeros(KIB)
        view = one[:4]
        assert memory.live_bytes == 4 * KIB
        two = one + 1
        assert memory.peak_bytes == memory.live_bytes == 8 * KIB
        del one
        assert memory.live_bytes == 8 * KIB, "its view is alive"
        del view, two
        assert memory.live_bytes == 0


def test_what_does_not_fit_is_an_out_of_memory_that_holds_nothing() -> None:
    with CappedMemory(6 * KIB) as memory:
        one = torch.zeros(KIB)
        with pytest.raises(torch.OutOfMemoryError) as found:
            one + 1
        assert (memory.live_bytes, memory.ooms) == (4 * KIB, 1)
        memory.most_bytes = None
        assert (one + 1).sum() == KIB
    assert classify(collect(found.value), device_is_host=True).status is Status.OUT_OF_MEMORY


def test_a_graph_is_alive_until_it_was_used() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    with CappedMemory() as memory:
        loss = model(torch.zeros(32, 8)).sum()
        held = memory.live_bytes
        loss.backward()
        assert held > 32 * 64 * 4
        del loss
        model.zero_grad(set_to_none=True)
        assert memory.live_bytes < held / 4
