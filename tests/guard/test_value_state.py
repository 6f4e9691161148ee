"""Containers and numbers come back as they were."""

from typing import Any

from torch import nn

from autofit.guard import Guard
from autofit.guard.digest import fingerprint


def test_entries_that_parameters_name_keep_their_order() -> None:
    model: Any = nn.Linear(2, 1)
    order = model.order = {model.weight: 1, model.bias: 2}
    with Guard(model) as guard:
        order[model.weight] = order.pop(model.weight)
        assert guard.differences() == ["model.order (order of its entries)"]
    assert [key is model.weight for key in order] == [True, False]


def test_a_number_of_any_length_returns() -> None:
    model: Any = nn.Linear(1, 1)
    model.number = model.same = 1 << 20_000
    with Guard(model) as guard:
        model.number, model.same = model.number | 1, (1 << 19_999) * 2
        assert guard.differences() == ["model.number"]
    assert model.number == 1 << 20_000
    assert fingerprint(model.number) != fingerprint(model.number + 1)
