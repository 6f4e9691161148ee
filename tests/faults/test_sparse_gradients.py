"""Sparse gradients are not traced, on any device or stand-in (issue 16, B 17): 76 to 87 % too low before."""

import pytest
import torch
from torch import nn

import autofit
from autofit.core.errors import Untraceable


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(500, 8, sparse=True), nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.bag(ids))
        return answer


def make_bags() -> autofit.Workload:
    model = Bags()
    batches = [(torch.randint(0, 500, (8, 5)), torch.randint(0, 2, (8,))) for _ in range(4)]
    recipe = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731  # Adam takes no sparse gradients
    return autofit.Workload(model=model, loader=batches, loss_fn=nn.functional.cross_entropy, optimizer=recipe)


@pytest.mark.slow
def test_an_estimate_for_a_card_names_the_layer() -> None:
    """On a stand-in the trace ended its process with a SystemError of torch."""
    with pytest.raises(Untraceable, match=r"sparse gradients .*the module 'bag'.*At any batch size"):
        autofit.estimate(f"{__file__}:make_bags", device="H200", numerics="exact")


def test_an_estimate_for_the_host_names_the_layer() -> None:
    workload = make_bags()
    with pytest.raises(Untraceable, match=r"sparse gradients .*the module 'bag'.*At any batch size"):
        autofit.estimate(
            workload.model, workload.loader, loss_fn=workload.loss_fn, optimizer=workload.optimizer,
            memory_budget="8MiB", numerics="exact",
        )  # fmt: skip
