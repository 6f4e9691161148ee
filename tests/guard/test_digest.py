"""Two values have the same fingerprint exactly when no bit of them differs."""

from array import array
from typing import Any

import pytest
from torch import nn

from autofit.guard import Guard, digest_of
from tests.guard.world import (
    MUTATORS,
    World,
)


@pytest.mark.parametrize(
    "kind",
    ["parameter", "one ulp", "sign of zero", "non-persistent buffer", "mode", "learning rate", "torch rng"],
)
def test_the_digest_sees_the_change(kind: str) -> None:
    world = World()
    before = digest_of(world.model, world.optimizer, world.loader, world.extras)
    assert digest_of(world.model, world.optimizer, world.loader, world.extras) == before
    MUTATORS[kind][1](world)
    assert digest_of(world.model, world.optimizer, world.loader, world.extras) != before


def test_values_are_compared_by_their_bits() -> None:
    model: Any = nn.Linear(1, 1)
    nan = array("d", [float("nan")])
    model.values = [nan, array("f", [0.0]), bytearray(b"a")]
    with Guard(model) as guard:
        assert guard.differences() == []
        model.values[1][0] = -0.0
        assert guard.differences() == ["model.values[1]"]
    assert str(model.values[1][0]) == "0.0"
