"""Kinds of findings. To add one, write its file and add a line here, or add an entry point in another package."""

from collections.abc import Sequence
from functools import cache

from autofit.core.errors import UsageError
from autofit.doctor.findings.accelerators import Fp32Products, Fragmentation, LaunchBound, RepeatedCasts
from autofit.doctor.findings.at_the_peak import DeadAtPeak, RetainGraph, SavedUnused
from autofit.doctor.findings.base import Detector
from autofit.doctor.findings.gradients import (
    FrozenState,
    GradientDropped,
    GradientWithoutOptimizer,
    NoGradient,
    ZeroedGradients,
)
from autofit.doctor.findings.grows import GraphGrows, GraphKept, Grows
from autofit.doctor.findings.heavy_module import HeavyModule
from autofit.doctor.findings.modes import CheckpointNoEffect, Modes
from autofit.doctor.findings.plans import AttentionScores, Loader, Logits, OptimizerPeak, Padding, Workspaces
from autofit.doctor.findings.recompiles import Recompiles
from autofit.doctor.findings.tensors import Duplicates, Float64, ViewHolds, WideMask
from autofit.doctor.findings.versions import Versions
from autofit.doctor.findings.waits import EmptyCache, Sync
from autofit.doctor.findings.worker_growth import GrowingWorkers
from autofit.plugins import plugins

BUILT_IN: tuple[type[Detector], ...] = (
    Grows, GraphKept, GraphGrows, DeadAtPeak, RetainGraph, SavedUnused, GradientWithoutOptimizer, GradientDropped,
    NoGradient, FrozenState, ZeroedGradients, Float64, WideMask, ViewHolds, Duplicates, Modes, CheckpointNoEffect,
    HeavyModule, AttentionScores, Logits, OptimizerPeak, Padding, Sync, EmptyCache,
    Fragmentation, Fp32Products, LaunchBound, RepeatedCasts, Workspaces, Loader,
    GrowingWorkers, Recompiles, Versions,
)  # fmt: skip
"""The kinds of findings of autofit itself."""


@cache
def members() -> tuple[Detector, ...]:
    """Returns a detector of each kind. Those of other packages are loaded on the first call."""
    return tuple(member() for member in (*BUILT_IN, *plugins("findings", Detector, BUILT_IN, "id")))


def chosen(only: Sequence[str] | None = None, skip: Sequence[str] = ()) -> tuple[Detector, ...]:
    """Returns the detectors of these kinds, or all for None, except those in `skip`.

    Raises:
        UsageError: a name is unknown, or nothing is left.
    """
    known = [member.id for member in members()]
    if unknown := [name for name in (*(only or ()), *skip) if name not in known]:
        raise UsageError(
            f"found {', '.join(map(repr, unknown))} as a kind of finding; expected some of {', '.join(known)}. Correct "
            "the name."
        )
    found = tuple(member for member in members() if (only is None or member.id in only) and member.id not in skip)
    if not found:
        raise UsageError(f"found no kind of finding to look for; expected some of {', '.join(known)}. Skip fewer.")
    return found
