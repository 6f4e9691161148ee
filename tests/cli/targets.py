"""Tiny factories for the command line: `tests/cli/targets.py:make_mlp`."""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit

torch.set_num_threads(1)


def _mlp(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))


def _loader(samples: int = 64) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 8, generator=generator)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)


def make_mlp(width: int = 16, batch: int | None = 16) -> autofit.Workload:
    """A workload that prints, as users' files do."""
    print("\x1b[31mnoise of the user's file\x1b[0m", flush=True)  # noqa: T201  # users do
    return autofit.Workload(_mlp(width), _loader(), loss_fn=F.cross_entropy, global_batch_size=batch)


def make_slow(seconds: float = 0.05, marker: str = "") -> autofit.Workload:
    """Steps that last, so that a test can stop a run in the middle of one; each opening leaves its process's number."""
    if marker:
        with Path(marker).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(seconds)
        return F.cross_entropy(model(batch[0]), batch[1])

    return autofit.Workload(_mlp(), _loader(), step_fn=step_fn, global_batch_size=16)


def keeps(model: nn.Module, batch: Any) -> torch.Tensor:
    """Computes the loss, and keeps the outputs until the next step."""
    model.outputs = outputs = model(batch[0])
    return F.cross_entropy(outputs, batch[1])


def does_not_keep(model: nn.Module, batch: Any) -> torch.Tensor:
    """Computes the same loss."""
    return F.cross_entropy(model(batch[0]), batch[1])


def make_keeping(mended: bool = False) -> dict[str, Any]:
    """A training whose outputs are a seventh of its peak, where nothing reads them any more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16384))
    batches = [(torch.randn(128, 8), torch.randint(16384, (128,))) for _ in range(4)]  # ready, so of one size
    return {"model": model, "loader": batches, "step_fn": does_not_keep if mended else keeps}


def make_failing() -> tuple[nn.Module, DataLoader[Any]]:
    """A model that fails at every size, with a message that takes the terminal over."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(9, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] != 9:
                raise ValueError("\x1b[31mexpected nine\x07 columns\x1b[0m")
            output: torch.Tensor = self.layer(x)
            return output

    return Broken(), _loader()


def make_not_finite() -> autofit.Workload:
    """A loss that is never finite."""
    return autofit.Workload(_mlp(), _loader(), step_fn=lambda model, batch: model(batch[0]).sum() * float("inf"))
