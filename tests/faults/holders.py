"""What ways of holding state have in common: a small workload, and the register of the ways."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset


@dataclass
class Holder:
    """A workload and the state that it holds beside model and optimizer.

    Attributes:
        given: arguments of `autofit.tune` that differ from the plain workload's.
        state: reads the state: simple values, tensors and arrays, nested.
        objects: objects that have to be the same ones afterwards.
    """

    given: dict[str, Any]
    state: Callable[[], Any]
    objects: Callable[[], list[Any]] = list


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(32, 4, generator=generator), torch.arange(32) % 2)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def averaged(ema: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for kept, new in zip(ema.parameters(), model.parameters(), strict=True):
            kept.lerp_(new + 1, 0.1)


def bits(*tensors: Any) -> list[Any]:
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in tensors]


def parameters(module: nn.Module) -> list[torch.Tensor]:
    return bits(*module.state_dict().values())


HOLDERS: dict[str, Callable[[], Holder]] = {}


def holder(make: Callable[[], Holder]) -> Callable[[], Holder]:
    HOLDERS[make.__name__.replace("_", " ")] = make
    return make
