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
    if loss.inferred:
        yield f"the loss was inferred: {loss.about}"
    yield from mode_notes(eval_modules)
    if workload.optimizer is None and workload.training:
        yield "no optimizer was given: measured with torch.optim.AdamW and its defaults"
    if device.is_host and devices.choose().is_host:
        yield f"tuned for the CPU ({device.name()}): the plan does not carry over to an accelerator"
    yield from guarded
    yield from device.caveats()
    yield from source.notes
