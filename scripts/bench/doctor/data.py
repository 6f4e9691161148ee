"""Data and small models for the trainings of this benchmark."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, CLASSES, WORDS, SIDE = 256, 10, 512, 24
Given = dict[str, Any]


def random_rows(*shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.arange(SAMPLES) % CLASSES


def random_words(length: int = 32) -> Tensor:
    return torch.randint(1, WORDS, (SAMPLES, length), generator=torch.Generator().manual_seed(1))


def loader_of(*columns: Tensor, size: int = 32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*columns), batch_size=size)


def mlp(width: int = 256, out: int = CLASSES, depth: int = 4) -> nn.Sequential:
    hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Linear(64, width), nn.GELU(), *hidden, nn.Linear(width, out))


def cnn(inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace), nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32), nn.ReLU(inplace), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def next_word(model: nn.Module, batch: list[Tensor]) -> Tensor:
    words = batch[0]
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def classified(model: nn.Module, **more: Any) -> Given:
    loader = loader_of(random_rows(64), labels(), size=64)
    return {"model": model, "loader": loader, "loss_fn": F.cross_entropy, **more}


def own_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    found: Tensor = model(*batch)
    return found
