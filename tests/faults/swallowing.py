"""A workload whose model hides that memory ran out: it catches the error and goes on without the large tensor."""

import torch
from torch import nn

from autofit.workloads.workload import Workload
from tests.probing.targets import make_wide

LARGE = 64 * 2**20
"""Bytes that the model asks for in each step."""


class Swallowing(nn.Module):
    """Wants a large tensor in each step, and does without it where it is refused."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the module inside returns, shifted by the mean of the large tensor."""
        output: torch.Tensor = self.inside(x)
        try:
            return output + torch.zeros(LARGE // 4).mean()
        except RuntimeError:
            return output


def make_workload() -> Workload:
    """Returns the workload of `make_wide` with such a model."""
    wide = make_wide()
    return Workload(Swallowing(wide.model), wide.loader, step_fn=wide.step_fn)
