"""Ways to estimate memory. To add one: write its file, add its line here."""

from autofit.estimators.base import Context, Estimator, Tracer
from autofit.estimators.measured import Measured
from autofit.estimators.short_runs import ShortRuns, listed, small_sizes
from autofit.estimators.traced import Traced
from autofit.memory.alignment import Mismatch
from autofit.memory.peak import MemoryUse, memory_use
from autofit.memory.roofline import samples_per_s
from autofit.memory.scaling import Scaling, scaling

MEMBERS: tuple[type[Estimator], ...] = (Traced, Measured)
"""Every estimator, the most trusted first."""

__all__ = [
    "MEMBERS",
    "Context",
    "Estimator",
    "Measured",
    "MemoryUse",
    "Mismatch",
    "Scaling",
    "ShortRuns",
    "Traced",
    "Tracer",
    "listed",
    "memory_use",
    "samples_per_s",
    "scaling",
    "small_sizes",
]  # fmt: skip
