"""`estimate` where the step cannot be traced: one line says what stopped it, and the next best thing follows."""

from typing import Any

import pytest
import torch
from torch import nn

import autofit
from autofit.core.errors import Untraceable


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.rnn(inputs)[0][:, -1])
        return answer


def make_recurrent() -> autofit.Workload:
    samples: Any = [(torch.randn(20, 32), index % 4) for index in range(256)]
    loader: Any = torch.utils.data.DataLoader(samples, batch_size=16)
    return autofit.Workload(model=Recurrent(), loader=loader, loss_fn=nn.functional.cross_entropy)


@pytest.mark.slow
def test_on_the_host_short_steps_are_run_instead() -> None:
    found = autofit.estimate(f"{__file__}:make_recurrent", device="cpu", memory_budget="100MiB", numerics="exact")
    assert found.ran == (2, 4, 8)
    assert "short steps at micro batches 2, 4, 8" in " ".join(str(found).split())
    assert [note for note in found.caveats if "a library runs the LSTM" in note and "short real steps" in note]
    (row,) = found.rows
    assert row.largest is not None
    assert row.surely is not None
    assert row.surely <= 16 * 8 < row.largest.plan.micro_batch_size, "bounds hold near what ran only"


def test_in_process_everything_is_put_back_after_the_short_steps() -> None:
    torch.manual_seed(0)
    workload = make_recurrent()
    before = {name: tensor.clone() for name, tensor in workload.model.state_dict().items()}
    found = autofit.estimate(
        workload.model, workload.loader, loss_fn=workload.loss_fn, memory_budget="100MiB", numerics="exact"
    )
    assert found.ran
    assert all(torch.equal(before[name], tensor) for name, tensor in workload.model.state_dict().items())
    assert all(parameter.grad is None for parameter in workload.model.parameters())


@pytest.mark.slow
def test_for_a_card_that_is_not_here_the_static_part_is_said() -> None:
    with pytest.raises(Untraceable, match="the memory of activations is unknown") as caught:
        autofit.estimate(f"{__file__}:make_recurrent", device="H200")
    parameters = sum(p.nbytes for p in Recurrent().parameters()) / 2**10
    said = str(caught.value)
    assert "a library runs the LSTM" in said
    assert f"parameters {parameters:.4g} KiB + gradients {parameters:.4g} KiB" in said
    assert "optimizer state" in said  # AdamW's, which no step has made
    assert "Run autofit tune" in said
