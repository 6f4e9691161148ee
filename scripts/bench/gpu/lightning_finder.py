"""Lightning's batch-size finder on a rig, with its defaults. The package is imported only when the finder runs."""

import importlib
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch

from autofit.workloads.sources import source_of
from scripts.bench.gpu.rig import STEPS, Rig

PACKAGES = ("lightning", "pytorch_lightning")


def lightning(mode: str) -> Callable[[Rig], int]:
    """Returns the finder in one of its modes, "power" or "binsearch"."""

    def find(rig: Rig) -> int:
        name = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
        pl, tuner = importlib.import_module(name), importlib.import_module(f"{name}.tuner")
        for noisy in ("lightning.pytorch", "pytorch_lightning"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        module = _module(pl.LightningModule, rig)
        trainer = pl.Trainer(
            accelerator="cpu" if rig.device.is_host else "gpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tempfile.mkdtemp(),
            gradient_clip_val=module.workload.max_grad_norm,
        )
        return int(tuner.Tuner(trainer).scale_batch_size(module, mode=mode, init_val=2, steps_per_trial=STEPS) or 0)

    return find


def _module(base: type[Any], rig: Rig) -> Any:
    """Returns the workload of the rig as a `LightningModule` that counts steps and out-of-memory errors."""
    workload = rig.make()
    workload.model.to(rig.device.torch_device)
    loss, source = rig.loss(workload), source_of(workload.loader)

    class Module(base):  # type: ignore[misc]  # imported when it is run
        def __init__(self) -> None:
            super().__init__()
            self.model, self.workload, self.batch_size = workload.model, workload, 2

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            with rig.counting():
                rig.step_begins(self.batch_size)
                return loss.compute(self.model, batch)

        def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            with rig.counting():
                super().backward(loss, *args, **kwargs)

        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            with rig.counting():
                super().optimizer_step(*args, **kwargs)

        def on_train_batch_end(self, *_: Any) -> None:
            rig.ran.add(self.batch_size)

        def configure_optimizers(self) -> torch.optim.Optimizer | None:
            return workload.make_optimizer()

        def train_dataloader(self) -> Any:
            return source.rebuild(self.batch_size)

    return Module()
