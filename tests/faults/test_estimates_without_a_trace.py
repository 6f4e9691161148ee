"""`estimate` where the step cannot be traced: one line says what stopped it, and what is known follows."""

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


def test_in_process_the_static_part_is_said_and_everything_is_put_back() -> None:
    torch.manual_seed(0)
    workload = make_recurrent()
    before = {name: tensor.clone() for name, tensor in workload.model.state_dict().items()}
    with pytest.raises(Untraceable, match="the memory of activations is unknown"):
        autofit.estimate(
            workload.model, workload.loader, loss_fn=workload.loss_fn, memory_budget="100MiB", numerics="exact"
        )
    assert all(torch.equal(before[name], tensor) for name, tensor in workload.model.state_dict().items())
    assert all(parameter.grad is None for parameter in workload.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("device", ["H200", "cpu"])
def test_the_static_part_is_said(device: str) -> None:
    with pytest.raises(Untraceable, match="the memory of activations is unknown") as caught:
        autofit.estimate(f"{__file__}:make_recurrent", device=device)
    parameters = sum(p.nbytes for p in Recurrent().parameters()) / 2**10
    said = str(caught.value)
    assert "a library runs the LSTM" in said
    assert f"parameters {parameters:.4g} KiB + gradients {parameters:.4g} KiB" in said
    assert "optimizer state" in said  # AdamW's, which no step has made
    assert "Run autofit tune" in said
