"""Gates: does a technique keep this model's gradient? Asked once per search, before anything is probed.

Thresholds and their measured background: reference/reliability.md sections 7 and 8 (accumulation: 1e-7 where splitting
is harmless, 0.26 and more where it is not; bf16 autocast: relative L2 about 1e-2, cosine 0.9999). The precision gate
is a smoke test on one batch: it says nothing about convergence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from autofit.core.plan import Plan
from autofit.probing.batch_store import fresh
from autofit.workloads.counted import Counted, Cuttable
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.tree import Batch

ACCUMULATION_L2 = 1e-3
ACCUMULATION_NORM = 1e-3
REDUCED_L2 = 0.05
"""For both, when the model itself computes in 16 bits: rounding alone is then about 1e-2, and what changes the
objective was never below 0.26."""
PRECISION_COSINE = 0.999
PRECISION_L2 = 0.05
BACKOFF = 16.0
"""Scale of a gradient scaler is lowered by this while the gradient overflows, down to about 1."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a technique keeps the gradient, and the numbers in words."""

    passed: bool
    reason: str


Build = Callable[[Plan], TrainStep]


def accumulation(build: Build, batch: Batch | Cuttable, seed: int) -> Verdict:
    """Compares the gradient of `batch` with that of its samples one by one, accumulated as `TrainStep` does.

    A model that takes no single samples (batch normalisation of vectors) is shown halves instead.

    Args:
        build: makes a train step; its model's gradients are left as None.
        batch: at least 2 samples; a plain one is cut along its first dimension.
        seed: for the random numbers that remain when dropout is off.
    """
    found = Cuttable.of(batch)
    size = found.samples
    whole, reduced = _gradient(build, [Counted(found.batch, size)], seed)
    try:
        parts, _ = _gradient(build, found.cut([1] * size), seed)
    except ValueError:
        parts, _ = _gradient(build, found.cut([size // 2, size - size // 2]), seed)
    norm = float(whole.norm())
    if norm == 0:
        return Verdict(False, "accumulation could not be checked: the gradient is zero on this batch")
    error, ratio = float((parts - whole).norm()) / norm, float(parts.norm()) / norm
    most, most_norm = (REDUCED_L2, REDUCED_L2) if reduced else (ACCUMULATION_L2, ACCUMULATION_NORM)
    passed = error <= most and abs(ratio - 1) <= most_norm
    why = "accumulation gives the same gradient" if passed else "accumulation changes the gradient of this model"
    return Verdict(passed, f"{why}: relative L2 of the gradient {error:.1e} (at most {most:g}), norm ratio {ratio:.4f}")


def precision(build: Build, plan: Plan, batch: Batch, seed: int) -> Verdict:
    """Compares the gradient under `plan` with the one as the user has it, on the same batch and random numbers."""
    reference, _ = _gradient(build, [batch], seed)
    reduced, _ = _gradient(build, [batch], seed, plan)
    if not bool(torch.isfinite(reduced).all()):
        return Verdict(False, "the gradient is not finite")
    cosine = float(nn.functional.cosine_similarity(reduced, reference, dim=0))
    error = float((reduced - reference).norm() / reference.norm())
    numbers = (
        f"cosine of the gradient {cosine:.5f} (at least {PRECISION_COSINE}), relative L2 {error:.1e} "
        f"(at most {PRECISION_L2})"
    )
    passed = cosine >= PRECISION_COSINE and error <= PRECISION_L2
    return Verdict(passed, numbers)


def _gradient(
    build: Build, parts: Sequence[Batch | Counted], seed: int, plan: Plan | None = None
) -> tuple[torch.Tensor, bool]:
    """Returns the gradient of one step, dropout off, nothing updated, and whether it was computed in 16 bits.

    The gradient is one float32 vector on the host, over every parameter that is trained. Where a scaler's first
    scale makes it overflow, the scale is lowered as training would lower it.
    """
    with build(plan or Plan()) as step, _dropout_off(step.draft.model):
        model, scaler = step.draft.model, step.draft.scaler
        while True:
            _backward(step, parts, seed)
            scale = 1.0 if scaler is None else scaler.get_scale()
            found = torch.cat([_flat(p) for p in model.parameters() if p.requires_grad]) / scale
            if scaler is None or scale <= 1 or bool(torch.isfinite(found).all()):
                model.zero_grad(set_to_none=True)
                return found, _is_reduced(step)
            scaler.update(scale / BACKOFF)


def _backward(step: TrainStep, parts: Sequence[Batch | Counted], seed: int) -> None:
    device = step.draft.device
    step.draft.model.zero_grad(set_to_none=True)
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
        torch.manual_seed(seed)
        step.backward(StepBatch.of([fresh(part) for part in parts]))


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    """Returns a parameter's gradient as a vector; zeros where the batch did not reach it."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel())
    gradient = parameter.grad.detach()
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()).float().flatten().cpu()


def _is_reduced(step: TrainStep) -> bool:
    small = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in step.draft.model.parameters())
    return small or torch.is_autocast_enabled(step.draft.device.type)


@contextmanager
def _dropout_off(model: nn.Module) -> Iterator[None]:
    """Puts every module in evaluation mode except batch normalisation, whose training mode is what is asked about."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module, training in modes.items():
            module.training = training and isinstance(module, _NormBase)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
