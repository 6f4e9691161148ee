"""Find, by short measured runs, the fastest way to train your PyTorch model within a memory budget.

    fit = autofit.tune(model, loader)
    step = fit.prepare(model, loader, optimizer)
    for batch in step.loader:
        loss = step(batch)

Public names are loaded on first use: `import autofit` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autofit.api import diagnose, estimate, load, tune, watch
    from autofit.core.answer import Answer
    from autofit.core.errors import (
        AutofitError,
        BudgetSpent,
        Busy,
        ClockError,
        DeviceMissing,
        DevicePoisoned,
        NonFiniteLoss,
        NothingFits,
        PlanFileError,
        RanksLost,
        RestoreError,
        SpaceError,
        StorageError,
        StudyError,
        Untraceable,
        UsageError,
        UserCodeError,
        WorkloadError,
    )
    from autofit.core.plan import Plan
    from autofit.doctor.diagnosis import Diagnosis
    from autofit.estimation.estimation import Estimation
    from autofit.fit import Fit
    from autofit.workloads.step import TrainStep
    from autofit.workloads.workload import Workload

__all__ = [
    "Answer",
    "AutofitError",
    "BudgetSpent",
    "Busy",
    "ClockError",
    "DeviceMissing",
    "DevicePoisoned",
    "Diagnosis",
    "Estimation",
    "Fit",
    "NonFiniteLoss",
    "NothingFits",
    "Plan",
    "PlanFileError",
    "RanksLost",
    "RestoreError",
    "SpaceError",
    "StorageError",
    "StudyError",
    "TrainStep",
    "Untraceable",
    "UsageError",
    "UserCodeError",
    "Workload",
    "WorkloadError",
    "diagnose",
    "estimate",
    "load",
    "tune",
    "watch",
]

_HOMES = {
    "Diagnosis": "autofit.doctor.diagnosis",
    "Estimation": "autofit.estimation.estimation",
    "Fit": "autofit.fit",
    "Plan": "autofit.core.plan",
    "Answer": "autofit.core.answer",
    "TrainStep": "autofit.workloads.step",
    "Workload": "autofit.workloads.workload",
    "diagnose": "autofit.api",
    "estimate": "autofit.api",
    "load": "autofit.api",
    "tune": "autofit.api",
    "watch": "autofit.api",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'autofit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "autofit.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
