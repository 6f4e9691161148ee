"""Trains with Lightning: a loader that is passed to `fit`."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):  # type: ignore[misc]  # not typed
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(512, 32)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :5].argmax(1)), batch_size=16, shuffle=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
    size, steps = trainer.train_dataloader.batch_size, trainer.accumulate_grad_batches
    print(f"trained {trainer.global_step} steps of {size} x {steps}")
