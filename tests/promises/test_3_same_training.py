"""Promise 3: the global batch is kept exactly, and what changes the result is named and left out."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from tests.promises.conftest import GLOBAL_BATCH, Tuned


def test_the_global_batch_is_kept_exactly(tuned: Tuned) -> None:
    plans = [tuned.fit.plan, *(other.plan for other in tuned.fit.alternatives)]
    assert {plan.global_batch_size for plan in plans} == {GLOBAL_BATCH}


@pytest.mark.filterwarnings("ignore:the plan was measured with")
def test_a_step_has_the_gradient_of_the_whole_global_batch(tuned: Tuned) -> None:
    model = copy.deepcopy(tuned.model).eval()  # without dropout
    plan = tuned.fit.plan.replace(micro_batch_size=8, accumulation_steps=GLOBAL_BATCH // 8)
    data = TensorDataset(*next(iter(DataLoader(tuned.loader.dataset, batch_size=GLOBAL_BATCH))))
    model.zero_grad(set_to_none=True)
    rates = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    F.cross_entropy(model(data.tensors[0]), data.tensors[1]).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    expected = [old - gradient for old, gradient in zip(before, gradients, strict=True)]
    model.zero_grad(set_to_none=True)
    fit = autofit.Fit(tuned.fit.answer.model_copy(update={"plan": plan}))
    loader = DataLoader(data, batch_size=8)
    with fit.prepare(model, loader, rates, loss_fn=F.cross_entropy) as step:
        step(next(iter(step.loader)))
    for parameter, value in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-3, atol=1e-5)


def test_a_technique_that_changes_the_gradient_is_named_and_left_out(untuned: Tuned) -> None:
    untuned.model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    untuned.optimizer = torch.optim.AdamW(untuned.model.parameters())
    fit = untuned.tune(strategies=("batching",))
    assert fit.plan.micro_batch_size == 8  # as it is: with another, batches would be normalised by other samples
    refused = {refusal.name: refusal.reason for refusal in fit.answer.refused}
    assert "changes the gradient of this model" in refused["accumulation"]
    assert "running_mean" in refused["accumulation"]


class OneTask:
    """Batches of samples of one of two tasks, in turn."""

    def __init__(self, tasks: torch.Tensor) -> None:
        self.tasks = tasks

    def __iter__(self) -> Iterator[list[int]]:
        kinds = [torch.split(torch.nonzero(self.tasks == kind).flatten(), 8) for kind in (0, 1)]
        for pair in zip(*kinds, strict=True):
            yield from (each.tolist() for each in pair)

    def __len__(self) -> int:
        return len(self.tasks) // 8


class TwoHeads(nn.Module):
    """Has a head for each task, and takes all samples of a batch for those of the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(32, 4) for _ in range(2))

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.heads[int(task[0])](x)
        return found


def test_batches_whose_samples_belong_together_are_not_joined() -> None:
    torch.manual_seed(0)
    tasks = torch.arange(256) % 2
    data = TensorDataset(torch.randn(256, 32), tasks, torch.randint(4, (256,)))
    loader = DataLoader(data, batch_sampler=OneTask(tasks))
    given: dict[str, Any] = {"strategies": ("batching",), "device": "cpu", "study": ":memory:", "progress": False}
    fit = autofit.tune(
        TwoHeads(),
        loader,
        step_fn=lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch_size=32,
        **given,
    )
    assert (fit.plan.micro_batch_size, fit.plan.accumulation_steps) == (8, 4)
    refused = {refusal.name: refusal.reason for refusal in fit.answer.refused}
    assert "changes the gradient of this model" in refused["accumulation"]
