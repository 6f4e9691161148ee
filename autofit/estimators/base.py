"""Estimator: predicts the memory of a plan without running it."""

from abc import ABC, abstractmethod

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial


class Estimator(ABC):
    """Predicts the memory peak of a plan.

    Made once per `tune()`. The loop tells it every trial; `estimate` may be called at any time and must be cheap.
    """

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial."""

    @abstractmethod
    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the predicted peak, or None for no opinion. Without a sound bound the bound is None."""
