"""Finds out, on one small batch, how the loss of a workload is computed."""

import torch

from autofit.workloads.batches import BatchSource
from autofit.workloads.forward import resolve_forward
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.tree import map_tensors
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import Workload


def loss_of(workload: Workload, source: BatchSource, device: torch.device) -> LossRule:
    """Returns the rule that computes the loss. May run the model once.

    Raises:
        WorkloadError: no loss can be inferred, or the function given does not return a loss.
    """
    if workload.update_fn is not None:
        return rule_of_update(workload.update_fn)

    def found(size: int) -> LossRule:
        batch = map_tensors(source.typical(size, 1)[0], lambda t: t.to(device))
        if not workload.training:
            return resolve_forward(batch, workload.step_fn)
        return resolve_loss(workload.model, batch, loss_fn=workload.loss_fn, step_fn=workload.step_fn)

    return source.on_small(found)
