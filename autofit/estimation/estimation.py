"""Estimation: what `autofit.estimate` returns."""

from autofit.estimation.records import EstimationRecord
from autofit.estimation.text import draw


class Estimation(EstimationRecord):
    """What a workload's training will need on a device that it has not run on. `print` shows it as text."""

    def __str__(self) -> str:
        return draw(self)
