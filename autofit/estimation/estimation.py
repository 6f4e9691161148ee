"""Estimation: what `autofit.estimate` returns."""

from autofit.estimation.records import EstimationRecord
from autofit.estimation.text import draw


class Estimation(EstimationRecord):
    """The memory that a workload's training will need on a device where it has not run. `print` shows it as text."""

    def __str__(self) -> str:
        return draw(self)
