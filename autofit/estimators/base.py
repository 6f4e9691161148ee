"""Estimator: predicts the memory of a plan without running it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial


class Estimator(ABC):
    """Predicts the memory peak of a plan.

    Made once per `tune()`. The loop tells it every trial; `estimate` may be called at any time and must be cheap. What
    it says of a plan changes only by `tell`, `foresee` and `survey`: between these it is asked once.
    """

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial."""

    def foresee(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Prepares to estimate a plan that is about to be screened; may take seconds, unlike `estimate`.

        Args:
            plan: what is asked for.
            along: all plans of its combination that may be asked for, smallest micro batch first; () for it alone.
        """
        return

    def survey(self, plans: Sequence[Plan]) -> None:
        """Prepares to estimate plans that are worth knowing before any runs, the most telling first.

        May leave out the last ones where that takes long.
        """
        return

    @abstractmethod
    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the predicted peak, or None for no opinion. Without a sound bound the bound is None."""
