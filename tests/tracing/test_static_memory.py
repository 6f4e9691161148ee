"""What a step keeps whatever its batch is known without a step."""

from typing import Any

import torch
from torch import nn

from autofit.tracing.static_memory import find_fixed_parts
from autofit.workloads.workload import Workload


def parts(optimizer: Any, **more: Any) -> dict[str, int]:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 8)), 2)
    found = find_fixed_parts(Workload(model, loader, optimizer=optimizer, **more))
    return {part.name: part.size_bytes for part in found}


WEIGHTS = 4 * (8 * 4 + 4 + 4 + 4)
BUFFERS = 4 * (4 + 4) + 8


def test_parameters_buffers_gradients_and_two_moments_of_adam() -> None:
    found = parts(torch.optim.Adam)
    assert found["parameter"] == found["gradient"] == WEIGHTS
    assert found["buffer"] == BUFFERS
    assert 2 * WEIGHTS <= found["optimizer state"] <= 2 * WEIGHTS + 4 * 8


def test_an_optimizer_without_state_adds_nothing_and_one_that_fails_is_left_out() -> None:
    assert "optimizer state" not in parts(lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it returns no loss
            raise RuntimeError("needs more than gradients")

    assert "optimizer state" not in parts(lambda parameters: Broken(parameters, lr=0.1))


def test_inference_has_no_gradients() -> None:
    found = parts(None, mode="inference")
    assert set(found) == {"parameter", "buffer"}
