"""Small Lightning modules, data modules and trainers for tests. They note what a training does."""

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FILTERS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:lightning")
"""Warnings of Lightning itself."""
SAMPLES = 64


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(3, (SAMPLES,), generator=generator))


def loader(size: int = 8) -> DataLoader[Any]:
    return DataLoader(samples(), batch_size=size)


class Net(LightningModule):  # type: ignore[misc]  # not typed
    """Logs, asks its trainer, and notes its forward passes and updates in the training itself."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.rows: list[int] = []
        self.dtypes: list[torch.dtype] = []
        self.updates: list[int] = []
        self.started = False

    def on_train_start(self) -> None:
        self.started = True

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        out = self.line(inputs)
        loss = nn.functional.cross_entropy(out, targets)
        self.log("loss", loss)
        self.log_dict({"step": float(self.trainer.global_step)})
        if self.started:
            self.rows.append(len(inputs))
            self.dtypes.append(out.dtype)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.updates.append(len(self.rows))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Loading(Net):
    """Makes its loader, with a batch size that can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size, self.workers = 8, 0

    def train_dataloader(self) -> DataLoader[Any]:
        return loader(self.batch_size)


class Data(LightningDataModule):  # type: ignore[misc]  # not typed
    """Makes loaders with a batch size that can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size, self.made = 8, 0

    def train_dataloader(self) -> DataLoader[Any]:
        self.made += 1
        return loader(self.batch_size)


def trainer(*callbacks: Any, **arguments: Any) -> Any:
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_steps": 2,
    }
    return Trainer(**{**quiet, **arguments}, callbacks=list(callbacks))
