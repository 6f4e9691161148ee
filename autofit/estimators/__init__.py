"""Ways to predict memory. To add one: write its file, add its line here."""

from autofit.estimators.alignment import Refusal
from autofit.estimators.base import Estimator
from autofit.estimators.measured import Measured
from autofit.estimators.memory import Prediction, predict
from autofit.estimators.recorded import ShortRuns, listed, small_sizes
from autofit.estimators.scaling import Scaling, scaling
from autofit.estimators.speed import samples_per_s
from autofit.estimators.traced import Traced, Tracer

MEMBERS: tuple[type[Estimator], ...] = (Measured,)
"""Every estimator that needs no model, the most trusted first."""

__all__ = [
    "MEMBERS", "Estimator", "Measured", "Prediction", "Refusal", "Scaling", "ShortRuns", "Traced", "Tracer",
    "listed", "predict", "samples_per_s", "scaling", "small_sizes",
]  # fmt: skip
