"""A Lightning training that tunes its batch when `fit` starts, and a later one under the same plan.

    pip install '.[lightning]'
    python examples/lightning_trainer.py

Points of interest:
  * The callback measures the module's `training_step` with its optimizer, restores everything, and then trains.
  * The global batch stays that of the loader: 64 samples per optimizer step.
  * A later training needs no search: it takes the plan from its file.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.integrations.lightning import ApplyPlan, AutofitCallback, trainer_arguments

PLAN = "autofit_lightning_plan.yaml"
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class Classifier(LightningModule):  # type: ignore[misc]  # lightning is not typed here
    """A small network over 32 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 5))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Returns the loss of a micro batch."""
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def make_loader() -> DataLoader[Any]:
    """Returns batches of 64 random samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2048, 32, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=64, shuffle=True)


def main() -> None:
    """Trains twice: with a search at the start, and under the plan that it found."""
    torch.manual_seed(0)
    tuning = AutofitCallback(memory_budget="1GiB", time_budget="60s")
    Trainer(accelerator="cpu", max_steps=20, callbacks=[tuning], **QUIET).fit(Classifier(), make_loader())
    if tuning.fit is None:
        return
    print(tuning.fit)
    tuning.fit.save(PLAN)

    trainer = Trainer(accelerator="cpu", max_steps=20, callbacks=[ApplyPlan(PLAN)], **trainer_arguments(PLAN), **QUIET)
    trainer.fit(Classifier(), make_loader())
    print(f"step {trainer.global_step}: loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
