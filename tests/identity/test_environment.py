"""Where a plan is measured: the signature of the workload beside device and versions."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.identity.identity import signature
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import bench_of


class Stateful(nn.Module):
    """Everything a probe could leave a trace in: statistics, random numbers, attributes, modes, gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.seen: torch.Tensor
        self.calls, self.fails_at = 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.seen += 1.0
        output: torch.Tensor = self.frozen(self.layers(x + 0.01 * torch.randn_like(x))) + self.seen
        return output


@pytest.fixture
def used() -> Workload:
    """A workload in the middle of training, in the middle of an accumulation."""
    model = Stateful()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = targets.vectors()
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
    return Workload(
        model, loader, loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=optimizer, max_grad_norm=1.0
    )


def signature_of(workload: Workload) -> str:
    return bench_of(workload).briefing.environment.workload


def test_the_signature_is_that_of_the_structure_and_not_of_the_weights(used: Workload) -> None:
    own = signature_of(used)
    trained = copy.copy(used)
    with torch.no_grad():
        trained.model.get_parameter("layers.0.weight").add_(1.0)
    assert signature_of(trained) == own
    assert signature_of(targets.make_mlp()) != own
    assert signature_of(targets.make_mlp()) == signature_of(targets.make_mlp())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda: Workload(targets.mlp(width=17), targets.vectors()), "model"),
        (lambda: Workload(without_last_bias(), targets.vectors()), "model"),
        (lambda: Workload(targets.mlp().double(), doubles()), "model"),
        (lambda: Workload(frozen(), targets.vectors()), "model"),
        (lambda: targets.make_mlp(loss_fn=nn.CrossEntropyLoss()), "data"),
        (lambda: Workload(targets.mlp(), doubles(torch.float32), loss_fn=lambda x, y: x.mean()), "data"),
    ],
)
def test_the_signature_changes_with(change: Callable[[], Workload], part: str) -> None:
    own, other = signature_of(targets.make_mlp()).split("-"), signature_of(change()).split("-")
    assert own[part == "data"] != other[part == "data"]
    if part == "data":
        assert own[0] == other[0]


def without_last_bias() -> nn.Module:
    return nn.Sequential(*list(targets.mlp().children())[:3], nn.Linear(16, 4, bias=False))


def doubles(dtype: torch.dtype = torch.float64) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 8, dtype=dtype), torch.randn(32, 4)), batch_size=8)


def frozen() -> nn.Module:
    model = targets.mlp()
    model[0].weight.requires_grad_(False)
    return model


def test_a_signature_is_two_short_digests() -> None:
    assert signature(targets.mlp(), "x float32[B]", "mse_loss") == signature(targets.mlp(), "x float32[B]", "mse_loss")
    first, second = signature(targets.mlp(), "x float32[B]", "mse_loss").split("-")
    assert len(first) == len(second) == 8
