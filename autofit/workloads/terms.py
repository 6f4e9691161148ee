"""Terms: the user's functions and optimizer of a workload, without its model and batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from autofit.workloads.workload import OptimizerRecipe


@dataclass(frozen=True, slots=True)
class Terms:
    """Loss and optimizer of the tuned workload: the defaults of `Fit.prepare`. See `Workload` for the attributes."""

    loss_fn: Callable[..., torch.Tensor] | None = None
    step_fn: Callable[..., torch.Tensor] | None = None
    optimizer: OptimizerRecipe = None
    update_fn: Callable[..., Any] | None = None

    def completed_by(self, tuned: Self) -> Self:
        """Returns these terms; what is missing is that of `tuned`. The functions go together: one replaces all."""
        given = any(function is not None for function in (self.loss_fn, self.step_fn, self.update_fn))
        functions = self if given else tuned
        optimizer = tuned.optimizer if self.optimizer is None else self.optimizer
        return replace(functions, optimizer=optimizer)
