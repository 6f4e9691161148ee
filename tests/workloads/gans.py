"""Two tiny models with two optimizers and the step that trains both, which tests of `update_fn` share."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from autofit.workloads.workload import Workload

NOISE, WIDTH = 4, 8


def models() -> nn.ModuleDict:
    """Returns a generator with batch normalisation and a discriminator with dropout, each with two blocks."""
    torch.manual_seed(0)

    def block(*last: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), *last)

    generator = nn.Sequential(nn.Linear(NOISE, 16), block(nn.BatchNorm1d(16)), block(nn.BatchNorm1d(16)))
    critic = nn.Sequential(nn.Linear(WIDTH, 16), block(nn.Dropout(0.1)), block(nn.Dropout(0.1)), nn.Linear(16, 1))
    return nn.ModuleDict({"generator": generator.append(nn.Linear(16, WIDTH)), "critic": critic})


def optimizers(made: nn.ModuleDict) -> dict[str, Optimizer]:
    """Returns an optimizer of another class for each model."""
    return {
        "critic": torch.optim.AdamW(made["critic"].parameters(), lr=1e-2),
        "generator": torch.optim.Adam(made["generator"].parameters(), lr=1e-2),
    }


def update(made: nn.ModuleDict, each: Mapping[str, Optimizer], batch: Any) -> dict[str, torch.Tensor]:
    """Trains the critic, then the generator against it."""
    generator, critic, real = made["generator"], made["critic"], batch[0]
    fake = generator(torch.randn(len(real), NOISE))
    judged = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    each["critic"].zero_grad()
    torch.autograd.backward(judged)
    each["critic"].step()
    fooled = F.softplus(-critic(fake)).mean()
    each["generator"].zero_grad()
    torch.autograd.backward(fooled)
    each["generator"].step()
    return {"critic": judged, "generator": fooled}


def loader(samples: int = 64, batch_size: int = 8) -> DataLoader[Any]:
    """Returns batches of points, in an order that does not depend on the global generator."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(samples, WIDTH, generator=generator))
    return DataLoader(data, batch_size, shuffle=True, generator=torch.Generator().manual_seed(1))


def workload(**changes: Any) -> Workload:
    """Returns the GAN as a workload."""
    made = models()
    given: dict[str, Any] = {"update_fn": update, "optimizer": optimizers(made), **changes}
    return Workload(made, loader(), **given)
