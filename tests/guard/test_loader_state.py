"""How far a loader is, is watched and named."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import RestoreError
from autofit.guard import Guard


def _loader(seed: int, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(16))
    return DataLoader(data, batch_size=4, generator=torch.Generator().manual_seed(seed), **options)


def test_a_loader_iterator_that_was_advanced_is_named() -> None:
    loader = _loader(3)
    iterator = loader._iterator = iter(loader)
    with pytest.raises(RestoreError, match=r"loader\._iterator"), Guard(nn.Linear(1, 1), loader=loader):
        next(iterator)
    with pytest.raises(RestoreError, match="loader"), Guard(nn.Linear(1, 1), loader=iterator):
        next(iterator)


class StatefulLoader:
    """A loader with a position, whose `load_state_dict` must not be called."""

    def __init__(self) -> None:
        self.position = [0]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position[0]}


def test_a_stateful_loader_is_compared_by_its_state() -> None:
    loader = StatefulLoader()
    with Guard(nn.Linear(1, 1), loader=loader) as guard:
        loader.position[0] = 5
        assert "loader.state_dict()" in guard.differences()
    assert loader.position == [0]
