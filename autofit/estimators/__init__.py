"""Estimators of memory. To add one, write its file and add its line here; in another package, add an entry point."""

from functools import cache

from autofit.estimators.base import Context, Estimator, Tracer
from autofit.estimators.measured import Measured
from autofit.estimators.traced import Traced
from autofit.memory.peak import MemoryUse, memory_use
from autofit.memory.roofline import samples_per_s
from autofit.plugins import plugins

BUILT_IN: tuple[type[Estimator], ...] = (Traced, Measured)
"""The estimators of autofit itself, the most trusted first."""


@cache
def members() -> tuple[type[Estimator], ...]:
    """Returns every estimator, the most trusted first.

    Those of other packages are loaded at the first call.
    """
    return (*BUILT_IN, *plugins("estimators", Estimator, BUILT_IN))


__all__ = [
    "BUILT_IN",
    "Context",
    "Estimator",
    "Measured",
    "MemoryUse",
    "Traced",
    "Tracer",
    "members",
    "memory_use",
    "samples_per_s",
]
