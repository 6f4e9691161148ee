"""Two values have the same fingerprint exactly when no bit of them differs."""

from array import array
from collections import deque
from typing import Any

import pytest
from torch import nn

from autofit.guard import Guard
from autofit.guard.digest import fingerprint
from tests.digests import digest_of
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


def test_sequences_of_integers_differ_by_type_length_order_and_each_integer() -> None:
    values: list[Any] = [(1, 23), (12, 3), (23, 1), (1, 23, 0), [1, 23], (1, True), (1, 23.0), (1, "23"), ("1 23",), ()]
    values += [(1, -23), (1, 2**70), (1, 2**70 + 1), (1, 10**5000), ((1, 23),), (1, (23,)), deque([1, 23]), "1 23"]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint((1, 10**5000)) == fingerprint((1, 10**5000))
