"""Foresight: what the estimators say together of a plan's memory, and when they are asked to look at one."""

from collections.abc import Sequence

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.endings import for_good
from autofit.search.pretrace import worth_knowing
from autofit.search.tuning import Tuning

SAFE_RATIO = 0.5
"""A plan that is guessed to need less than this share of the budget is run without a closer look at its memory."""
LOOSE_RATIO = 0.95
"""An estimate whose lower bound is below this share of its value is loose: borrowed, or drawn through one size."""


class Foresight:
    """The estimators of a search."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._surveyed = False
        self._said: dict[str, Estimate | None] = {}  # until an estimator learns more

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns what the estimators say together: the tightest bounds, and the first value that rests on a bound."""
        if plan.key not in self._said:
            self._said[plan.key] = self._together(plan)
        return self._said[plan.key]

    def _together(self, plan: Plan) -> Estimate | None:
        opinions = [e for estimator in self._tuning.estimators if (e := estimator.estimate(plan)) is not None]
        if len(opinions) < 2:
            return opinions[0] if opinions else None
        first = next((e for e in opinions if e.is_bounded and not e.worst_case), opinions[0])
        lower = max((e.lower_bytes for e in opinions if e.lower_bytes is not None), default=None)
        upper = min((e.upper_bytes for e in opinions if e.upper_bytes is not None), default=None)
        value = first.value_bytes if upper is None else min(first.value_bytes, upper)
        value = value if lower is None else max(value, lower)
        said = first.value_bytes if value != first.value_bytes else None
        if (value, lower, upper) == (first.value_bytes, first.lower_bytes, first.upper_bytes):
            return first
        bounds = {"value_bytes": value, "lower_bytes": lower, "upper_bytes": upper}
        return first.model_copy(update=bounds | {"said_bytes": said})

    def tell(self, trial: Trial) -> None:
        """Lets the estimators learn from a trial."""
        self._said.clear()
        for estimator in self._tuning.estimators:
            estimator.tell(trial)

    def begin(self) -> None:
        """Has the estimators look at the user's own combination at all sizes: what comes next rests on it.

        Raises:
            DevicePoisoned: as of `look`.
        """
        space = self._tuning.space
        self._prepare(space.baseline, [space.at(space.baseline.combination, size) for size in space.sizes])

    def survey(self) -> None:
        """Has the estimators look at what is worth knowing before anything runs, once."""
        if not self._surveyed:
            self._surveyed = True
            plans = worth_knowing(self._tuning.space, self.estimate, self._tuning.budget.memory_bytes)
            try:
                for estimator in self._tuning.estimators:
                    estimator.refine_all(plans)
            finally:
                self._said.clear()

    def look(self, plan: Plan) -> Estimate | None:
        """Returns what is said of a plan after a closer look, unless it is known well enough.

        That is when it surely has room to spare, or has close bounds that are both on one side of the budget.

        Raises:
            DevicePoisoned: a short run that was to show its memory left the device so.
        """
        known, limit = self.estimate(plan), self._tuning.budget.memory_bytes
        if known is None or _open(known, limit) or (_rough(known) and known.value_bytes > SAFE_RATIO * limit):
            self._prepare(plan)
        return self.estimate(plan)

    def _prepare(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        try:
            for estimator in self._tuning.estimators:
                estimator.refine(plan, along)
        except DevicePoisoned as error:
            raise for_good(str(error)) from error
        finally:
            self._said.clear()


def loose(estimate: Estimate) -> bool:
    """Says whether an estimate may be far off: it has neither a close lower bound nor an upper one."""
    return _rough(estimate) and estimate.upper_bytes is None


def _open(estimate: Estimate, limit_bytes: int) -> bool:
    """Whether the bounds of an estimate leave open on which side of the budget the peak is."""
    return (estimate.lower_bytes or 0) <= limit_bytes < (estimate.upper_bytes or 0)


def _rough(estimate: Estimate) -> bool:
    return estimate.lower_bytes is None or estimate.lower_bytes < LOOSE_RATIO * estimate.value_bytes
