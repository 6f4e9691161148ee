"""State that data sets, loaders, collate functions, samplers and recipes hold."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from tests.faults.holders import Holder, holder, loss_of, samples


class Cached(Dataset[Any]):
    """Caches, counts, and writes its samples in place."""

    def __init__(self) -> None:
        self.x, self.y = samples().tensors
        self.array = np.zeros((32, 4), dtype=np.float32)
        self.cache: dict[int, Any] = {}
        self.reads = 0
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        self.x[index] += self.rng.random()
        self.array[index] += 1
        self.cache[index] = self.x[index].clone()
        return self.x[index], self.y[index]

    def state(self) -> Any:
        return [self.x.clone(), self.array.copy(), sorted(self.cache), self.reads, self.rng.getstate()]


@holder
def data_set_that_writes() -> Holder:
    data = Cached()
    return Holder({"loader": DataLoader(data, batch_size=8)}, data.state, lambda: [data.x, data.array, data.cache])


@holder
def data_set_inside_a_subset() -> Holder:
    data = Cached()
    subset = torch.utils.data.Subset(data, range(16))
    return Holder({"loader": DataLoader(subset, batch_size=8)}, data.state)


@holder
def data_set_that_is_a_list() -> Holder:
    class Row:
        def __init__(self, value: float) -> None:
            self.reads, self.value = 0, torch.full((4,), value)

    rows = [Row(i / 32) for i in range(32)]

    def collate(rows: list[Row]) -> Any:
        for row in rows:
            row.reads += 1
            row.value.mul_(0.9)
        return torch.stack([row.value for row in rows]), torch.arange(len(rows)) % 2

    loader: Any = DataLoader(rows, batch_size=8, collate_fn=collate)  # type: ignore[arg-type]
    return Holder({"loader": loader}, lambda: [(row.reads, row.value.clone()) for row in rows])


@holder
def transform_with_a_generator() -> Holder:
    class Noisy(Dataset[Any]):
        def __init__(self) -> None:
            self.inner = samples()
            self.transform = SimpleNamespace(generator=torch.Generator().manual_seed(2), calls=[0])

        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Any:
            x, y = self.inner[index]
            self.transform.calls[0] += 1
            return x + torch.randn(4, generator=self.transform.generator), y

    data = Noisy()
    state = lambda: [data.transform.generator.get_state(), list(data.transform.calls)]  # noqa: E731
    return Holder({"loader": DataLoader(data, batch_size=8)}, state)


class Stream(IterableDataset[Any]):
    """Counts its passes."""

    def __init__(self) -> None:
        self.passes = 0
        self.seen: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        data = samples()
        for x, y in (data[at] for at in range(len(data))):
            self.seen.append(float(x[0]))
            yield x, y


@holder
def stream_that_counts() -> Holder:
    data = Stream()
    return Holder({"loader": DataLoader(data, batch_size=8)}, lambda: [data.passes, len(data.seen)])


@holder
def collate_function() -> Holder:
    class Collate:
        def __init__(self) -> None:
            self.longest, self.pad = 0, torch.zeros(4)

        def __call__(self, rows: list[Any]) -> Any:
            self.longest = max(self.longest, len(rows))
            self.pad += 1
            return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    collate = Collate()
    loader: Any = DataLoader(samples(), batch_size=8, collate_fn=collate)
    return Holder({"loader": loader}, lambda: [collate.longest, collate.pad.clone()], lambda: [collate.pad])


class Rotating(Sampler[int]):
    """A sampler that goes on where it was."""

    def __init__(self) -> None:
        self.start = 0
        self.orders: list[Any] = []

    def __iter__(self) -> Iterator[int]:
        self.start += 1
        self.orders.append(self.start)
        return iter([(self.start + i) % 32 for i in range(32)])

    def __len__(self) -> int:
        return 32


@holder
def sampler_of_the_users_own() -> Holder:
    sampler = Rotating()
    loader = DataLoader(samples(), batch_size=8, sampler=sampler)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        iter(loader.sampler)
        return loss_of(model, batch)

    return Holder({"loader": loader, "step_fn": step}, lambda: [sampler.start, list(sampler.orders)])


@holder
def ready_batches_written_in_place() -> Holder:
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=generator), torch.arange(8) % 2) for _ in range(4)]

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        for x, _ in batches:
            x.mul_(0.5)
        return loss_of(model, batch)

    return Holder({"loader": batches, "step_fn": step}, lambda: [x.clone() for x, _ in batches])


@holder
def loader_of_the_users_own() -> Holder:
    class Batches:
        def __init__(self) -> None:
            self.epoch = 0
            self.sizes: list[int] = []

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            self.sizes.append(8)
            x, y = samples().tensors
            return iter([(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)])

    loader = Batches()
    return Holder({"loader": loader}, lambda: [loader.epoch, list(loader.sizes)])


@holder
def worst_case_that_counts() -> Holder:
    sizes: list[int] = []

    def worst(size: int) -> Any:
        sizes.append(size)
        return torch.ones(size, 4), torch.zeros(size, dtype=torch.long)

    return Holder({"worst_case": worst}, lambda: list(sizes))


@holder
def optimizer_recipe_that_keeps_what_it_made() -> Holder:
    made: list[Any] = []

    def recipe(given: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(given)
        made.append(optimizer)
        return optimizer

    return Holder({"optimizer": recipe}, lambda: len(made))
