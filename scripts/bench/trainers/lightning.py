"""A transformer with random weights in a Lightning Trainer."""

import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autofit.fit import Fit
from autofit.integrations.lightning import ApplyPlan, AutofitCallback, trainer_arguments
from autofit.workloads.step import TrainStep
from scripts.bench.trainers.arms import WARM_UP_STEPS, StepEnds, Trained
from scripts.bench.trainers.judging import BlockTimes

CLASSES, SAMPLES = 10, 2048
QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip


class Classifier(LightningModule):  # type: ignore[misc]  # not typed
    """Classifies sequences of vectors."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.head(self.body(inputs).mean(1)), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class InLightning(Trained):
    """A classifier of random sequences.

    Args:
        name: of the case.
        width, depth, length: of the model and its sequences.
        size: batch of the baseline.
    """

    def __init__(self, name: str, *, width: int, depth: int, length: int, size: int) -> None:
        chance = torch.Generator().manual_seed(0)
        inputs = torch.randn(SAMPLES, length, width, generator=chance)
        self._data = TensorDataset(inputs, torch.randint(CLASSES, (SAMPLES,), generator=chance))
        self.name, self._size, self._shape = name, size, (width, depth)
        self._trained = self._model()

    def tune(self, seconds: float) -> Fit:
        tuning = AutofitCallback(time_budget=seconds, study=":memory:", progress=False)
        Trainer(max_steps=1, callbacks=[tuning], **QUIET).fit(self._model(), self._loader())
        assert tuning.fit is not None, "a Trainer that has trained was tuned"
        return tuning.fit

    def prepared(self, fit: Fit) -> TrainStep:
        module = self._model()
        optimizer = module.configure_optimizers()
        return fit.prepare(
            module, self._loader(), optimizer, step_fn=lambda model, batch: model.training_step(batch, 0)
        )

    def block(self, fit: Fit, steps: int) -> tuple[BlockTimes, str]:
        applied, ends = ApplyPlan(fit), _Ends()
        limits = {"max_steps": steps + WARM_UP_STEPS, "callbacks": [applied, ends]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of workers and of the shortfall, which is returned
            Trainer(**limits, **trainer_arguments(fit), **QUIET).fit(self._trained, self._loader())
        assert applied.reached is not None, "a Trainer that has trained was measured"
        return ends.found.block(steps, applied.reached.overhead_s), applied.reached.shortfall()

    def _model(self) -> Classifier:
        torch.manual_seed(0)
        return Classifier(*self._shape)

    def _loader(self) -> DataLoader[Any]:
        return DataLoader(self._data, batch_size=self._size, shuffle=True)


class _Ends(Callback):  # type: ignore[misc]  # not typed
    def __init__(self) -> None:
        super().__init__()
        self.found, self._steps = StepEnds(), 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.found.note()
