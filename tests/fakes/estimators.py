"""Estimators with a fixed answer, or with a function for one."""

from collections.abc import Callable

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.estimators.base import Estimator


class Fixed(Estimator):
    """An estimator with the same estimate for every plan, or for some."""

    def __init__(self, estimate: Estimate, only: Callable[[Plan], bool] = lambda plan: True) -> None:
        self.said, self.only = estimate, only

    def tell(self, trial: Trial) -> None:
        pass

    def estimate(self, plan: Plan) -> Estimate | None:
        return self.said if self.only(plan) else None


class Estimates(Estimator):
    """An estimator that is a function, and learns nothing."""

    def __init__(self, function: Callable[[Plan], Estimate | None]) -> None:
        self.function = function

    def tell(self, trial: Trial) -> None:
        pass

    def estimate(self, plan: Plan) -> Estimate | None:
        return self.function(plan)
