"""Intel's cards, simulated: what differs from CUDA. The rest is in the conformance suite."""

import pytest

from autofit.devices import host_memory
from autofit.devices.accelerator import CONTEXT_BYTES
from autofit.devices.xpu import Xpu
from tests.devices.fake_torch import GIB, MIB, Card, install


def card_of(monkeypatch: pytest.MonkeyPatch, card: Card) -> Card:
    install(monkeypatch, "xpu", card)
    return card


def test_free_memory_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    card = card_of(monkeypatch, Card(others_bytes=5 * GIB))
    assert Xpu().driver_info() == (16 * GIB - 5 * GIB - card.context_bytes, 16 * GIB)


def test_where_the_driver_cannot_say_what_is_free_all_but_the_own_is(monkeypatch: pytest.MonkeyPatch) -> None:
    card = card_of(monkeypatch, Card(free_unknown=True))
    card.allocate(3 * GIB)
    assert Xpu().driver_info() == (13 * GIB, 16 * GIB)
    assert Xpu().available_bytes() == 16 * GIB
    with Xpu().meter(lambda: 0) as reading:
        card.allocate(GIB)
    assert reading.memory is not None
    assert reading.memory.judged_bytes == 4 * GIB


def test_a_chip_in_main_memory_asks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    card_of(monkeypatch, Card(total_bytes=30 * GIB, integrated=True, free_unknown=True))
    monkeypatch.setattr(host_memory, "available", lambda: 20 * GIB)
    monkeypatch.setattr(host_memory, "capacity", lambda: 24 * GIB)
    assert Xpu().capacity_bytes() == 24 * GIB
    assert Xpu().available_bytes() == 20 * GIB + CONTEXT_BYTES
    with Xpu().limit(12 * GIB, lambda: 0):
        pass


def test_the_limit_is_a_fraction_of_all_memory_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: 20 * GIB)
    monkeypatch.setattr(host_memory, "capacity", lambda: 24 * GIB)
    card = card_of(monkeypatch, Card(total_bytes=30 * GIB, integrated=True))
    with Xpu().limit(12 * GIB, lambda: 0):
        assert card.limit_bytes is not None
        assert 0 <= 12 * GIB - CONTEXT_BYTES - card.limit_bytes <= 1


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), True), ((7, 0), False)])
def test_bf16_is_said_by_the_driver(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: bool
) -> None:
    card_of(monkeypatch, Card(capability=capability))
    assert ("bf16" in Xpu().capabilities()) is expected
    assert "tf32" not in Xpu().capabilities()


@pytest.mark.parametrize("integrated", [True, False])
def test_only_a_card_has_its_own_memory(monkeypatch: pytest.MonkeyPatch, integrated: bool) -> None:
    card_of(monkeypatch, Card(integrated=integrated))
    assert ("own_memory" in Xpu().capabilities()) is not integrated


def test_it_says_that_nobody_has_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card_of(monkeypatch, Card(context_bytes=100 * MIB))
    never, lost = Xpu().caveats()
    assert "never been run on hardware" in never
    assert "lose the device" in lost
    assert Xpu().versions()["driver"] == "1.6.0"
