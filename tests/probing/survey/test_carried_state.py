"""State that belongs to the rows of a batch is recognised if the next step reads it."""

import torch
from torch import nn

from autofit.probing.survey.carried_state import carried
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import State
from autofit.workloads.counted_batches import Counted
from tests.probing.survey.test_gates import build


class Recurrent(nn.Module):
    """Keeps its hidden state; `reads` decides whether the next step uses it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.reads = nn.GRU(4, 6, batch_first=True), reads
        self.hidden: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, hidden = self.cell(x, self.hidden[0] if self.hidden and self.reads else None)
        self.hidden = [hidden.detach()]
        found: torch.Tensor = output.square().mean()
        return found


class Averaging(nn.Module):
    """A moving average has no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean.lerp(x.mean((0, 1)), 0.5)
        found: torch.Tensor = (self.layer(x) - self.mean).square().mean()
        return found


def judged(model: nn.Module) -> GateResult:
    def restore() -> None:
        if isinstance(model, Recurrent):
            model.hidden = []
        elif isinstance(model, Averaging):
            model.mean.zero_()

    batch = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    made = build(model, lambda model, batch: model(batch))
    return carried(made, Counted(batch, 6), Counted(batch[:3], 3), 0, State(restore))


def test_a_hidden_state_of_the_samples_keeps_the_batch() -> None:
    found = judged(Recurrent(reads=True))
    assert not found.passed
    assert found.reason.startswith("model.hidden has a row for each sample of a batch and is carried to the next step")


def test_what_no_step_reads_is_no_state() -> None:
    assert judged(Recurrent(reads=False)).passed


def test_state_without_rows_keeps_no_batch() -> None:
    assert judged(Averaging()).passed
