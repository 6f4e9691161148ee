"""Data sets and loaders that the tests of batches share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autofit.workloads.batches import BatchSource

TOKENS = [5, 3, 8, 2, 40, 6, 7, 4, 9, 1]  # lengths of ten texts; one outlier


class Texts(Dataset[dict[str, Any]]):
    """Samples of different lengths, as lists of token numbers; counts how often each is asked for."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.asked = lengths, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked += 1
        return {"input_ids": [index] * self.lengths[index], "label": index}


def pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    mask = torch.zeros(len(samples), width, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
        mask[row, : len(sample["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "label": torch.tensor([s["label"] for s in samples])}


class Stream(IterableDataset[torch.Tensor]):
    """Numbers from a fresh generator each time; counts how many iterators were made."""

    def __init__(self, count: int) -> None:
        self.count, self.epochs = count, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epochs += 1
        for at in range(self.count):
            yield torch.tensor([float(at)])


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.count


class Batches:
    """Iterates afresh over a DataLoader, as many wrappers do; has no length."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.passes = loader, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield from self.loader


def pairs(count: int = 10) -> TensorDataset:
    return TensorDataset(torch.arange(count * 3, dtype=torch.float32).reshape(count, 3), torch.arange(count))


def shuffling(seed: int = 7, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(pairs(), batch_size=4, shuffle=True, generator=generator, **options)


def labels(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def use_all(source: BatchSource) -> None:
    source.typical(3, 2)
    source.worst(3)
    source.structure()
    source.rebuild(2)
