"""Padding is harmless if the model ignores it, which is measured; a model that reads it is found."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gates import compare
from autofit.probing.survey.gradients import Build
from autofit.probing.survey.padding_gate import padded
from autofit.strategies import members
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.workloads.loaders import Padding, Texts
from tests.workloads.ragged import text_lengths


class Classifier(nn.Module):
    """A mean over tokens; `masked` leaves padding out."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.masked = nn.Embedding(64, 8), nn.Linear(8, 4), masked
        self.dropout = nn.Dropout(0.3)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden, mask = torch.tanh(self.embed(batch["input_ids"])), batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1) if self.masked else hidden.mean(1)
        output: torch.Tensor = self.head(self.dropout(mean))
        return output


def builder(model: nn.Module) -> Build:
    rule = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch), batch["label"] % 4), False, "")

    def build(plan: Plan) -> TrainStep:
        optimizer = torch.optim.SGD(model.parameters())
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu")), members())

    return build


def gate(model: nn.Module, collate: Any, lengths: list[int] | None = None) -> Any:
    source = BatchSource.of(DataLoader(Texts(lengths or text_lengths(64)), 4, shuffle=True, collate_fn=collate))
    found = padded(source, source.padded_to(8), 4)
    if isinstance(found, GateResult):
        return found
    compared = Compared(Plan(), strict=True, before=Counted(found[0], 4))
    return compare(builder(model), compared, Counted(found[1], 4), 0)


def test_a_model_that_ignores_padding_passes() -> None:
    found = gate(Classifier(masked=True), Padding())
    assert found.passed
    assert found.checked
    assert "relative L2 of the gradient" in found.reason


def test_a_model_that_reads_padding_does_not() -> None:
    found = gate(Classifier(masked=False), Padding())
    assert not found.passed
    assert found.checked
    assert found.reason.startswith("relative L2 of the gradient")


def test_batches_that_need_no_padding_check_nothing() -> None:
    found = gate(Classifier(masked=False), Padding(), [8, 16] * 32)
    assert (found.passed, found.checked) == (False, False)
    assert "no batch was padded further" in found.reason


class Masking(Padding):
    """Replaces a token at random, as for masked language models."""

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = super().__call__(samples)
        batch["input_ids"][:, 0] = random.randrange(1, 63)
        return batch


def test_random_batches_cannot_be_compared() -> None:
    random.seed(0)
    found = gate(Classifier(masked=True), Masking())
    assert (found.passed, found.checked) == (False, False)
    assert "other batches each time" in found.reason


class TrainsOnly(Classifier):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("no loss in evaluation mode")
        return super().forward(batch)


def test_a_step_that_runs_in_training_mode_only_is_compared_in_it() -> None:
    found = gate(TrainsOnly(masked=True), Padding())
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
