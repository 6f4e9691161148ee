"""Finds out, on one small batch, how the loss of a workload is computed, or its forward pass in inference."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.tree import Batch, map_tensors
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import Workload


def resolve_forward(batch: Batch, step_fn: Callable[..., Any] | None) -> LossRule:
    """Returns the rule that runs the model on batches like `batch` and returns its output.

    `step_fn(model, batch)` is used if given. Otherwise a mapping is passed as keywords, a pair `(inputs, targets)`
    passes its inputs, and any other batch is passed as the only argument.
    """
    if step_fn is not None:
        # Not "step_fn": the training of the same workload has that name, and its own study.
        return LossRule("forward by step_fn", step_fn, inferred=False, about="step_fn(model, batch)")
    compute, about = (lambda model, batch: model(batch)), "model(batch)"
    if isinstance(batch, Mapping):
        compute, about = (lambda model, batch: model(**batch)), "model(**batch)"
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        compute, about = (lambda model, batch: model(batch[0])), "model(inputs), for batches (inputs, targets)"
    return LossRule("forward", compute, inferred=True, about=about)


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
