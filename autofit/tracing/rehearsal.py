"""Rehearsal: one forward and backward pass of the user's step on a fake copy, for those who only want to watch it."""

from time import perf_counter

import torch

from autofit.core.errors import Untraceable
from autofit.core.plan import Plan
from autofit.strategies.base import Watch
from autofit.tracing.data_dependent import DataAnswers
from autofit.tracing.fake_copy import fake_batch, fake_mode, fake_workload
from autofit.tracing.plain_tensors import as_plain, has_padding
from autofit.tracing.recorder import Recorder
from autofit.tracing.tracing import undisturbed
from autofit.tracing.untraceable import check_traceable, untraceable
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from autofit.workloads.workload import Workload

LIMIT_S = 20.0
"""Seconds after which a rehearsal is abandoned."""


def rehearse(workload: Workload, loss: LossRule, batch: Counted, watch: Watch) -> None:
    """Runs the user's step without updates, with no strategy, inside `watch(model)` of a copy without data.

    Nothing is computed. Neither the model nor the random state change, but the user's functions run: what they keep
    outside the model must be restored.

    Args:
        workload: the user's objects, which are only read.
        loss: how the loss is computed.
        batch: a batch on the host.
        watch: the context of the step.

    Raises:
        Untraceable: something in the step cannot run without data, or it takes too long.
    """
    check_traceable(workload.model)
    device = next((tensor.device for tensor in workload.model.parameters()), torch.device("cpu"))
    recorder, padded = Recorder(device.type, DataAnswers()), has_padding(batch.batch)
    recorder.deadline = perf_counter() + LIMIT_S
    with undisturbed(), fake_mode(), as_plain(recorder, padded):
        try:
            part = fake_batch(batch, batch.samples, torch.device("cpu"))
            copied = fake_workload(workload, loss, part, device)
            copied.workload.set_mode()
            step = TrainStep(Plan(), Draft(copied.workload.model, copied.loss, None, device))
            with recorder, watch(step.model):
                step.backward(StepBatch.alike([part]))
            step.model.zero_grad(set_to_none=True)
        except Untraceable:
            raise
        except Exception as error:  # any error of the user's code or of torch on fake tensors ends the rehearsal
            raise untraceable(error, "the inspection of the step") from error
        finally:
            recorder.stop()
