"""Notes on a workload that the user should know before any plan is compared."""

from collections.abc import Iterator, Sequence

from autofit import devices
from autofit.devices.base import Device
from autofit.probing.survey.module_modes import mode_notes
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload


def notes_on(
    workload: Workload,
    device: Device,
    loss: LossRule,
    eval_modules: Sequence[str],
    source: BatchSource,
    kept: Sequence[str],
) -> Iterator[str]:
    """Yields the notes, the most important first.

    Args:
        workload: the user's objects.
        device: where plans are compared.
        loss: how the loss is computed.
        eval_modules: names of the modules that were in evaluation mode.
        source: the batches.
        kept: what the guard cannot put back; () if nothing needs to be.
    """
    if loss.inferred:
        yield f"the loss was inferred: {loss.about}"
    yield from mode_notes(eval_modules)
    if workload.optimizer is None and workload.training:
        yield "no optimizer was given: measured with torch.optim.AdamW and its defaults"
    if device.is_host and devices.choose().is_host:
        yield f"tuned for the CPU ({device.name()}): the plan does not carry over to an accelerator"
    yield from kept
    yield from device.caveats()
    yield from source.notes
