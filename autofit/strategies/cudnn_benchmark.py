"""cuDNN benchmark: cuDNN times its kernels for each convolution and keeps the fastest, instead of choosing by rule."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.strategies.undo import Undo
from autofit.torch_internals import ConvNd
from autofit.workloads.step import Draft

KNOB, CUDNN = "cudnn_benchmark", "cudnn"
"""Name of the knob, and the capability of devices whose convolutions are cuDNN's."""
SETTINGS: Any = torch.backends.cudnn


class CudnnBenchmark(Strategy):
    """Sets `torch.backends.cudnn.benchmark` while the step is open.

    A process keeps the first value (`Knob.of_process`). torch looks for the kernel of a convolution in a cache before
    it reads the flag. The flag is not in the cache's key, and the cache lives as long as its thread. So the first value
    under which a shape runs decides (aten/src/ATen/native/cudnn/Conv_v8.cpp: `run_single_conv`, `CacheKey`,
    `benchmark_cache`).

    Where the loss is inferred, a forward pass of two samples comes first. At a micro batch of two, the kernels of the
    forward pass are therefore not timed, and the gain that is measured may be too small.
    """

    name = "cudnn_benchmark"
    about = "times cuDNN's kernels for each convolution and keeps the fastest"
    cost = "the timing in the first steps, and the memory of the kernels that are timed"
    effect = "rounding"
    phase = Phase.ARITHMETIC
    owns = {KNOB: False}
    fits_update_fn = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob for a model with convolutions of one shape, if the user has not decided otherwise."""
        if CUDNN not in facts.capabilities:
            return self.refuse(f"this {facts.device_type} device has no cuDNN", "device")
        if (reason := _refusal(facts)) is not None:
            return self.refuse(reason)
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether cuDNN times its kernels for each convolution",
            same_memory=(True,),
            of_process=True,
            warm_up_s=(0.0, 3.0),
        )
        return Offer(knobs=(knob,))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Sets the process's flag until the context is left. Kernels that were chosen by then stay in use."""
        with Undo() as undo:
            undo.set(SETTINGS, "benchmark", True)
            yield


def _refusal(facts: Facts) -> str | None:
    """Returns why the user's setting is kept, or None."""
    if facts.numerics == "exact":
        return "another kernel sums in another order, and numerics='exact' keeps the arithmetic"
    if not any(isinstance(module, ConvNd) for module in facts.model.modules()):
        return "the model has no convolution among its modules (calls of torch.nn.functional are not seen)"
    if SETTINGS.benchmark or not SETTINGS.enabled:
        return f"torch.backends.cudnn.{'benchmark is already on' if SETTINGS.benchmark else 'enabled is off'}"
    if SETTINGS.deterministic or torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are on, and the kernel that is the fastest may differ from run to run"
    if facts.varies:
        return "batches differ in shape, and cuDNN would time its kernels again for each new shape"
    if not facts.resizable:
        return "batches cannot be cut, and the pass that finds the loss may choose the kernels for their shape before"
    if not facts.own_process:
        return (
            "a process keeps the first kernel that cuDNN chose for a convolution, so each value needs a process of "
            "its own: the command `autofit tune` gives it one"
        )
    return None
