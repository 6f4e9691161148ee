"""A Mac's GPU, simulated: it knows no peaks, and its limit cannot be read."""

import pytest
import torch

from autofit.devices import host_memory
from autofit.devices.mps import Mps
from tests.devices.fake_torch import GIB, Card, Machine, install


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(host_memory, "available", lambda: None)  # as on macOS
    return install(monkeypatch, "mps", Card(total_bytes=24 * GIB, context_bytes=0))


def test_it_is_the_device_of_its_tensors(machine: Machine) -> None:
    assert Mps().torch_device == torch.device("mps:0")
    assert Mps().name() == "Apple M9"


def test_capacity_is_what_metal_recommends(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mps().capacity_bytes() == Mps().available_bytes() == 24 * GIB
    machine.cards[0].allocate(2 * GIB)
    monkeypatch.setattr(host_memory, "available", lambda: 5 * GIB)
    assert Mps().available_bytes() == 7 * GIB
    monkeypatch.setattr(host_memory, "available", lambda: 50 * GIB)
    assert Mps().available_bytes() == 24 * GIB


def test_what_the_driver_gave_is_what_was_needed_at_most(machine: Machine) -> None:
    card = machine.cards[0]
    with Mps().meter(lambda: 77) as reading:
        with card.holding(3 * GIB):
            pass
        card.allocate(GIB)
    memory = reading.memory
    assert memory is not None
    assert memory.judged_bytes == memory.reserved_bytes == memory.footprint_bytes == memory.allocated_bytes == 3 * GIB
    assert memory.static_bytes == 77
    assert machine.log == ["synchronize"]


def test_the_limit_is_the_budget_and_then_torchs_own_again(machine: Machine) -> None:
    card = machine.cards[0]
    with Mps().limit(10 * GIB, lambda: 0):
        assert card.limit_bytes is not None
        assert 0 <= 10 * GIB - card.limit_bytes <= 1
    assert card.limit_bytes == int(1.7 * 24 * GIB)
    with pytest.raises(KeyError), Mps().limit(10 * GIB, lambda: 0):
        raise KeyError
    assert card.limit_bytes == int(1.7 * 24 * GIB)


@pytest.mark.parametrize(("ratio", "inside", "after"), [("0.25", 6 * GIB, 6 * GIB), ("0.0", 10 * GIB, None)])
def test_a_limit_from_the_environment_stays_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, ratio: str, inside: int, after: int | None
) -> None:
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", ratio)
    card = install(monkeypatch, "mps", Card(total_bytes=24 * GIB)).cards[0]
    with Mps().limit(10 * GIB, lambda: 0):
        assert card.limit_bytes is not None
        assert abs(card.limit_bytes - inside) <= 1
    assert card.limit_bytes == after


def test_a_budget_of_nothing_is_not_no_limit(machine: Machine) -> None:
    with Mps().limit(0, lambda: 0):
        assert machine.cards[0].limit_bytes is not None
        assert machine.cards[0].limit_bytes <= 1


def test_a_budget_beyond_what_metal_takes_is_its_most(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "0.0")
    with Mps().limit(100 * GIB, lambda: 0):
        assert machine.cards[0].limit_bytes == 48 * GIB


def test_bf16_came_with_macos_14(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mps().capabilities() == {"fp16", "bf16", "channels_last", "fused"}
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major <= 13)
    assert Mps().capabilities() == {"fp16", "channels_last", "fused"}


def test_it_says_what_nobody_knows(machine: Machine) -> None:
    never, peaks, limit = Mps().caveats()
    assert "never been run on hardware" in never
    assert "not report peaks" in peaks
    assert "set it again" in limit


def test_live_tensors_are_counted(machine: Machine) -> None:
    machine.at().allocate(3 * GIB)
    assert Mps().live_bytes() == 3 * GIB
