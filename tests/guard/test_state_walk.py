"""The walk names what it finds, and watches the position of a loader."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from autofit.core.errors import RestoreError
from autofit.guard import Guard
from autofit.guard.state_walk import Walk


def walk_loader(seed: int, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(16))
    return DataLoader(data, batch_size=4, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("form", ["shuffle", "sampler"])
@pytest.mark.fault("F29")
def test_the_next_batches_are_those_without_a_guard(form: str) -> None:
    def build() -> DataLoader[Any]:
        if form == "shuffle":
            return walk_loader(3, shuffle=True)
        sampler = RandomSampler(range(16), generator=torch.Generator().manual_seed(4))
        return DataLoader(TensorDataset(torch.arange(16)), batch_size=4, sampler=sampler)

    def read(loader: DataLoader[Any]) -> list[Any]:
        return [batch[0].tolist() for batch in loader]

    torch.manual_seed(0)
    expected = read(build())
    torch.manual_seed(0)
    loader = build()
    with Guard(nn.Linear(1, 1), loader=loader):
        assert read(loader) == expected
        assert read(loader) != expected
    assert read(loader) == expected


@pytest.mark.fault("F29")
def test_an_iterator_in_flight_is_untouched() -> None:
    loader = walk_loader(3, shuffle=True)
    flying, twin = iter(loader), iter(walk_loader(3, shuffle=True))
    next(flying), next(twin)
    with Guard(nn.Linear(1, 1), loader=loader):
        next(iter(loader))
    assert next(flying)[0].tolist() == next(twin)[0].tolist()


def test_workers_kept_by_a_probe_are_released() -> None:
    loader = walk_loader(3, num_workers=1, persistent_workers=True)
    with Guard(nn.Linear(1, 1), loader=loader):
        next(iter(loader))
        assert loader._iterator is not None
    assert loader._iterator is None


def test_a_list_of_batches_comes_back() -> None:
    batches = [{"x": torch.zeros(2)} for _ in range(3)]
    with Guard(nn.Linear(1, 1), loader=batches) as guard:
        batches.pop()
        assert "loader" in guard.differences()
    assert len(batches) == 3
    with Guard(nn.Linear(1, 1), loader=batches) as guard:
        batches[1]["x"].add_(1)
        assert guard.differences() == ["loader[1].x"]
    assert batches[1]["x"].tolist() == [0.0, 0.0]


def test_a_random_data_set_goes_on_where_it_was() -> None:
    data: Any = TensorDataset(torch.arange(4.0))
    data.rng = np.random.default_rng(1)
    expected = np.random.default_rng(1).random()
    with Guard(nn.Linear(1, 1), loader=DataLoader(data)) as guard:
        data.rng.random()
        assert guard.differences() == ["loader.dataset.rng"]
    assert data.rng.random() == expected


def loader_loader(seed: int, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(16))
    return DataLoader(data, batch_size=4, generator=torch.Generator().manual_seed(seed), **options)


def test_a_loader_iterator_that_was_advanced_is_named() -> None:
    loader = loader_loader(3)
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


def test_names_are_attributes_indices_and_positions_in_the_optimizer() -> None:
    model, walk = nn.Linear(2, 2), Walk()
    walk.look("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    assert walk._label("loader", "dataset") == "loader.dataset"
    assert walk._label("seen", 3) == "seen[3]"
    assert walk._label("seen", (1, 2)) == "seen[tuple]"
    assert walk._label("optimizer.state", model.bias) == "optimizer.state[1]"
    assert walk._label("optimizer.state", torch.ones(1)) == "optimizer.state[?]"


SEEN: list[int] = []


class Caching:
    @lru_cache  # noqa: B019  # what the test is about
    def look(self) -> int:
        SEEN.append(1)
        return len(SEEN)


def test_state_that_only_a_cached_method_names_comes_back() -> None:
    held = Caching()
    with Guard(nn.Linear(1, 1), functions={"step_fn": lambda model, batch: held.look()}) as guard:
        held.look()
        assert guard.differences() == [f"{__name__}.SEEN"]
    assert SEEN == []


def test_a_mapping_of_the_users_is_not_iterated_by_its_own_method() -> None:
    class Counting(dict[Any, Any]):
        iterated = 0

        def __iter__(self) -> Any:
            self.iterated += 1
            return super().__iter__()

    model: Any = nn.Linear(1, 1)
    counting = Counting(weight=torch.ones(2))
    counting[nn.Dropout(0.5)] = "a module as a key"
    model.table = counting
    model.samples = [counting]
    with Guard(model, loader=[Counting(sample=torch.ones(2))]):
        pass
    assert counting.iterated == 0
