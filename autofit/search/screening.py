"""Screening: whether a plan is run at all. What the estimators say together, and when they are asked to look closer."""

from collections.abc import Callable, Mapping, Sequence

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.core.units import format_bytes
from autofit.search.endings import for_good
from autofit.search.other_sizes import refused_below
from autofit.search.pretrace import worth_knowing
from autofit.search.tuning import Tuning

SAFE_RATIO = 0.5
"""A plan that is guessed to need less than this share of the budget is run without a closer look at its memory."""
LOOSE_RATIO = 0.95
"""An estimate whose lower bound is below this share of its value is loose: borrowed, or drawn through one size."""
GUESS_RATIO = 1.5
"""Under `cautious`, a loose estimate prevents a run only if it is above this multiple of the budget."""


class Screening:
    """Decides which plans are run.

    Args:
        tuning: what the search was given.
        record: the latest trial of each plan, by its key; grows while the search runs.

    Attributes:
        estimates: what was said of each plan before it first ran, by its key.
    """

    def __init__(self, tuning: Tuning, record: Mapping[str, Trial]) -> None:
        self._tuning, self._record = tuning, record
        self._refined_all = False
        self._said: dict[str, Estimate | None] = {}  # until an estimator learns more
        self.estimates: dict[str, Estimate] = {}

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

    def reason_to_skip(self, plan: Plan, vouched: Callable[[Plan], bool]) -> str | None:
        """Returns why a plan is not run, or None.

        Args:
            plan: what the searcher asked for.
            vouched: whether a plan is likely to fit although its estimate is above the budget; asked last.
        """
        if (violation := self._tuning.space.violation(plan)) is not None:
            return f"not in the search space: {violation}"
        if self._tuning.cautious and (refused := refused_below(self._record.values(), plan)) is not None:
            return f"the same combination did not fit at micro batch {refused}"
        estimate = self.estimate(plan)
        if estimate is None:
            return None
        limit = self._tuning.budget.memory_bytes
        against = f"the budget of {format_bytes(limit)} ({estimate.basis})"
        if estimate.lower_bytes is not None and estimate.lower_bytes > limit:
            return f"needs at least {format_bytes(estimate.lower_bytes)}, above {against}"
        allowed = limit * (GUESS_RATIO if _loose(estimate) else 1)
        above = not estimate.worst_case and estimate.value_bytes > allowed
        if self._tuning.cautious and above and not vouched(plan):
            how = "estimated" if estimate.is_bounded else "guessed"
            return f"is {how} to need {format_bytes(estimate.value_bytes)}, above {against}"
        return None

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
        self._refine(space.baseline, [space.at(space.baseline.combination, size) for size in space.sizes])

    def refine_all(self) -> None:
        """Has the estimators look at what is worth knowing before anything runs, once."""
        if not self._refined_all:
            self._refined_all = True
            plans = worth_knowing(self._tuning.space, self.estimate, self._tuning.budget.memory_bytes)
            try:
                for estimator in self._tuning.estimators:
                    estimator.refine_all(plans)
            finally:
                self._said.clear()

    def look(self, plan: Plan) -> None:
        """Has the estimators look closer at a plan, unless its memory is known well enough.

        It is known well enough if the plan surely has room to spare, or has close bounds on one side of the budget.

        Raises:
            DevicePoisoned: a short run that was to show its memory left the device so.
        """
        known, limit = self.estimate(plan), self._tuning.budget.memory_bytes
        if known is None or _open(known, limit) or (_rough(known) and known.value_bytes > SAFE_RATIO * limit):
            self._refine(plan)
        if (estimate := self.estimate(plan)) is not None:
            self.estimates[plan.key] = estimate.model_copy(update={"said_bytes": None})  # a searcher's, not a reader's

    def _refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        try:
            for estimator in self._tuning.estimators:
                estimator.refine(plan, along)
        except DevicePoisoned as error:
            raise for_good(str(error)) from error
        finally:
            self._said.clear()


def _loose(estimate: Estimate) -> bool:
    """Returns whether an estimate may be far off: it has neither a close lower bound nor an upper one."""
    return _rough(estimate) and estimate.upper_bytes is None


def _open(estimate: Estimate, limit_bytes: int) -> bool:
    """Returns whether the bounds of an estimate leave open on which side of the budget the peak is."""
    return (estimate.lower_bytes or 0) <= limit_bytes < (estimate.upper_bytes or 0)


def _rough(estimate: Estimate) -> bool:
    return estimate.lower_bytes is None or estimate.lower_bytes < LOOSE_RATIO * estimate.value_bytes
