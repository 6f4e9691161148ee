"""Ways to predict memory. To add one: write its file, add its line here."""

from autofit.estimators.base import Estimator
from autofit.estimators.measured import Measured

MEMBERS: tuple[type[Estimator], ...] = (Measured,)
"""Every estimator that needs no model, the most trusted first."""
