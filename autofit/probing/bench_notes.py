"""The notes of a bench for the user: how the workload is measured, and what differs from the user's own training."""

from collections.abc import Iterator, Sequence

from autofit import devices
from autofit.devices.base import Device
from autofit.probing.survey.module_modes import mode_notes
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload


def bench_notes(
    workload: Workload,
    device: Device,
    loss: LossRule,
    eval_modules: Sequence[str],
    guarded: Sequence[str],
    source: BatchSource,
) -> Iterator[str]:
    """Yields the notes, those on what is measured first.

    Args:
        workload: what is measured.
        device: where it is measured.
        loss: how the loss is computed.
        eval_modules: names of the modules that were in evaluation mode.
        guarded: the guard's caveats.
        source: makes the batches.
    """
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
        eval_modules: see `mode_notes`.
        done: what was done with the assumed optimizer: "measured" or "estimated".
    """
    if loss.inferred:
        yield f"the loss was inferred: {loss.about}"
    yield from mode_notes(eval_modules)
    if workload.optimizer is None and workload.training:
        yield f"no optimizer was given: {done} with torch.optim.AdamW and its defaults"
