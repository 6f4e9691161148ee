"""The fake takes what torch takes, and its allocator does what torch's does."""

import importlib
import inspect

import pytest
import torch

from tests.devices.fake_torch import FUNCTIONS, GIB, MIB, Card, install

REAL = {
    (module, name): inspect.signature(getattr(importlib.import_module(module), name))
    for module, names in FUNCTIONS.items()
    for name in names
}


@pytest.mark.parametrize(("module", "name"), REAL)
def test_the_parameters_are_those_of_torch(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    fake = inspect.signature(getattr(importlib.import_module(module), name))
    real = REAL[module, name]
    assert [(p.name, p.kind) for p in fake.parameters.values()] == [(p.name, p.kind) for p in real.parameters.values()]
    optional = [p.name for p in real.parameters.values() if p.default is not p.empty]
    assert [p.name for p in fake.parameters.values() if p.default is not p.empty] == optional


def test_a_request_takes_the_cache_then_the_device_then_flushes_then_fails() -> None:
    card = Card(total_bytes=GIB, context_bytes=0)
    card.allocate(600 * MIB)
    card.give(600 * MIB)
    card.allocate(500 * MIB)
    assert (card.allocated, card.reserved, card.retries) == (500 * MIB, 600 * MIB, 0)
    card.allocate(400 * MIB)
    assert (card.reserved, card.peaks) == (900 * MIB, [900 * MIB, 900 * MIB])
    card.give(500 * MIB)
    card.limit_bytes = 950 * MIB
    card.allocate(520 * MIB)
    assert (card.retries, card.ooms) == (0, 0)
    card.give(920 * MIB)
    card.others_bytes = GIB
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        card.allocate(GIB)
    assert (card.retries, card.ooms, card.reserved) == (1, 1, 0)


def test_the_fraction_is_kept_in_whole_bytes_of_what_the_chip_was_built_with() -> None:
    card = Card(total_bytes=90, built_bytes=100)
    card.set_fraction(0.555)
    assert (card.limit_bytes, card.fraction()) == (55, 0.55)
    card.set_fraction(1.0)
    assert (card.limit_bytes, card.fraction()) == (None, 1.0)
    pool = Card(total_bytes=90, built_bytes=100, backend="cudaMallocAsync")
    assert pool.fraction() > 1e16
    pool.set_fraction(0.5)
    assert pool.limit_bytes == 45
