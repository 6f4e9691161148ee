"""How the loss is computed is found on one small batch."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.workloads import gans

CPU = torch.device("cpu")


class Counting(nn.Linear):
    """Counts the samples that it was given."""

    seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).seen += len(x)
        return super().forward(x)


def loss(**more: Any) -> Any:
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 32)
    workload = Workload(Counting(4, 1), loader, **more)
    return loss_of(workload, source_of(loader, worst_case=None, seed=0), CPU)


def test_a_loss_function_is_taken_at_its_word() -> None:
    assert not loss(loss_fn=nn.functional.mse_loss).inferred


def test_the_model_runs_on_a_small_batch_only() -> None:
    Counting.seen = 0
    assert loss().name == "mse_loss"
    assert 0 < Counting.seen < 32


def test_inference_needs_no_loss() -> None:
    found = loss(mode="inference")
    batch = (torch.randn(2, 4), torch.randn(2, 1))
    assert found.compute(Counting(4, 1), batch) is not None


def test_a_step_of_the_user_needs_no_loss_and_runs_no_model() -> None:
    Counting.seen = 0
    model = Counting(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), 32)
    workload = Workload(model, loader, update_fn=gans.update, optimizer=torch.optim.SGD(model.parameters()))
    found = loss_of(workload, source_of(loader, worst_case=None, seed=0), CPU)
    assert found.update is not None
    assert (found.name, found.inferred, Counting.seen) == ("update_fn", False, 0)


def test_a_model_that_admits_only_the_users_size_runs_on_that() -> None:
    class Fixed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.view(32, 4))

    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 32)
    source = source_of(loader)
    assert loss_of(Workload(Fixed(4, 1), loader), source, CPU).name == "mse_loss"
    assert source.small_size == 32
