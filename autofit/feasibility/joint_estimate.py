"""JointEstimate: several estimators as one, computed once until one of them learns more."""

from collections.abc import Sequence

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.estimators.base import Estimator


class JointEstimate:
    """Combines the estimates of several estimators.

    Args:
        estimators: the estimators, the one with the most trusted value first.
    """

    def __init__(self, estimators: Sequence[Estimator]) -> None:
        self._estimators = estimators
        self._cache: dict[str, Estimate | None] = {}  # valid until an estimator learns more

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the tightest bounds of all estimates, and the first value that comes with a bound."""
        if plan.key not in self._cache:
            self._cache[plan.key] = self._combined(plan)
        return self._cache[plan.key]

    def bounded(self) -> set[str] | None:
        """Returns the keys of the combinations of which a plan may have an estimate with a bound; None: of any."""
        each = [estimator.bounded() for estimator in self._estimators]
        return None if None in each else {key for keys in each if keys is not None for key in keys}

    def tell(self, trial: Trial) -> None:
        """Lets the estimators learn from a trial."""
        self._cache.clear()
        for estimator in self._estimators:
            estimator.tell(trial)

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Has the estimators spend time on a plan; see `Estimator.refine`."""
        try:
            for estimator in self._estimators:
                estimator.refine(plan, along)
        finally:
            self._cache.clear()

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Has the estimators spend time on several plans; see `Estimator.refine_all`."""
        try:
            for estimator in self._estimators:
                estimator.refine_all(plans)
        finally:
            self._cache.clear()

    def _combined(self, plan: Plan) -> Estimate | None:
        estimates = [e for estimator in self._estimators if (e := estimator.estimate(plan)) is not None]
        if len(estimates) < 2:
            return estimates[0] if estimates else None
        first = next((e for e in estimates if e.is_bounded and not e.worst_case), estimates[0])
        lower = max((e.lower_bytes for e in estimates if e.lower_bytes is not None), default=None)
        upper = min((e.upper_bytes for e in estimates if e.upper_bytes is not None), default=None)
        value = first.value_bytes if upper is None else min(first.value_bytes, upper)
        value = value if lower is None else max(value, lower)
        moved = first.value_bytes if value != first.value_bytes else None
        if (value, lower, upper) == (first.value_bytes, first.lower_bytes, first.upper_bytes):
            return first
        bounds = {"value_bytes": value, "lower_bytes": lower, "upper_bytes": upper}
        return first.model_copy(update=bounds | {"said_bytes": moved})
