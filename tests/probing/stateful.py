"""A workload in which a probe could leave a trace of every kind."""

import torch
from torch import nn

from autofit.workloads.workload import Workload
from tests.probing import targets


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


def used_workload() -> Workload:
    """Returns a workload in the middle of training, in the middle of an accumulation."""
    model = Stateful()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = targets.vectors()
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
    return Workload(
        model, loader, loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=optimizer, max_grad_norm=1.0
    )
