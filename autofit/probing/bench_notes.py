"""The notes of a bench for the user: how the workload is measured, and what differs from the user's own training."""

from collections.abc import Iterator, Sequence

from autofit import devices
from autofit.core.units import format_names
from autofit.devices.base import Device
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload

NAMED = 3
"""Maximum number of modules that a note names."""


def bench_notes(
    workload: Workload,
    device: Device,
    loss: LossRule,
    eval_modules: Sequence[str],
    guarded: Sequence[str],
    source: BatchSource,
) -> Iterator[str]:
    """Yields the notes, those on what is measured first."""
    yield from training_notes(workload, loss, eval_modules, "measured")
    if device.is_host and devices.choose().is_host:
        yield f"tuned for the CPU ({device.name()}): the plan does not carry over to an accelerator"
    yield from guarded
    yield from device.caveats()
    yield from source.notes


def training_notes(workload: Workload, loss: LossRule, eval_modules: Sequence[str], done: str) -> Iterator[str]:
    """Yields what was assumed about the training.

    Args:
        workload: the workload.
        loss: the rule that computes its loss.
        eval_modules: names of modules of a model in training mode that were in evaluation mode.
        done: what was done with the assumed optimizer: "measured" or "estimated".
    """
    if loss.inferred:
        yield f"the loss was inferred: {loss.about}"
    if eval_modules:
        yield (
            f"found {format_names(eval_modules, NAMED)} in evaluation mode in a model that is in training mode: "
            "measured in training mode, because model.train() in a training loop sets every module to training mode. "
            "To keep modules in evaluation mode, override train() of your model"
        )
    if workload.optimizer is None and workload.training:
        yield f"no optimizer was given: {done} with torch.optim.AdamW and its defaults"
