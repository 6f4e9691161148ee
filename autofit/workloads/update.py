"""The rule of a training whose step is the user's: `update_fn` does the passes and the updates as a whole."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.environment import UPDATE_FN
from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.workloads.loss import LossRule, binds
from autofit.workloads.tree import Batch
from autofit.workloads.workload import as_given

WHOLE = "update_fn does the whole optimizer step"
"""Why techniques that change the inside of a step cannot be applied."""


def rule_of_update(update_fn: Callable[..., Any]) -> LossRule:
    """Returns the rule of a step that `update_fn(model, optimizer, batch)` does.

    Raises:
        WorkloadError: the function cannot be called so.
    """
    if binds(update_fn, (None, None, None), {}) is False:
        raise WorkloadError(
            f"found update_fn{inspect.signature(update_fn)}; expected a function that can be called as "
            "update_fn(model, optimizer, batch); change its parameters, or wrap it in a lambda"
        )

    def no_loss(model: nn.Module, batch: Batch) -> NoReturn:
        raise WorkloadError(f"the gradient of a loss was requested, but {WHOLE}; expected a call of the step.")

    def checked(model: nn.Module, optimizer: Optimizer, batch: Batch) -> torch.Tensor:
        """Returns the loss that the function returned; several by name are added up."""
        found = update_fn(model, as_given(optimizer), batch)
        losses = list(found.values()) if isinstance(found, Mapping) else [found]
        if not losses or not all(isinstance(loss, torch.Tensor) and loss.dim() == 0 for loss in losses):
            shown = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else a_type(found)
            raise WorkloadError(
                f"update_fn returned {shown}; expected a scalar tensor, or a dict of scalar tensors. Return the loss "
                "of the step, without .item(), which would wait for the device in each step."
            )
        return torch.stack([loss.detach().float() for loss in losses]).sum() if len(losses) > 1 else losses[0].detach()

    about = "update_fn(model, optimizer, batch) does the step and returns the loss"
    return LossRule(UPDATE_FN, no_loss, inferred=False, about=about, update=checked)
