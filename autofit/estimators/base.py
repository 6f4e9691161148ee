"""Estimator: estimates the memory of a plan without running it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

from autofit.core.account import Account
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.memory.profile import Profile
from autofit.memory.trace import Trace

Tracer = Callable[[Plan], Trace]
"""Traces a plan. Raises `Untraceable` if that is impossible, and `SpaceError` if the plan cannot be applied."""


@dataclass(frozen=True, slots=True)
class Context:
    """The resources of an estimator.

    Attributes:
        limit_bytes: the memory budget.
        account: how the device accounts for memory; None if that is unknown.
        allowance_s: seconds that all traces of a search may take; None for no limit.
        trace: traces a plan; None if no plan can be traced.
    """

    limit_bytes: int
    account: Account | None = None
    allowance_s: float | None = None
    trace: Tracer | None = None


class Estimator(ABC):
    """Estimates the memory peak of a plan.

    Made once per `tune()`, in the process that runs the loop. `autofit.feasibility` calls it and tells it every trial.
    `estimate` may be called at any time and must be cheap. Its answer for a plan changes only after `tell`, `refine` or
    `refine_all`.
    """

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Returns an estimator for a search, or None if the context lacks what it needs."""
        return cls()

    @property
    def caveat(self) -> str:
        """A caveat about these estimates for the user, once the search has ended; "" for none."""
        return ""

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial."""

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Spends time on a better estimate of a plan that is about to be screened. May take seconds.

        Args:
            plan: the plan to estimate.
            along: all plans of its combination that may be proposed, smallest micro batch first; () for the plan alone.
        """
        return

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Spends time on better estimates of informative plans before any plan runs, the most informative first.

        May leave out the last ones if that takes too long.
        """
        return

    def show(self, plan: Plan) -> None:
        """Prepares the profile of the recommended plan, also if the time for estimates is used up.

        The search calls it once, after the proof, if no estimator has a profile of the plan.
        """
        return

    def profile(self, plan: Plan) -> Profile | None:
        """Returns what makes up the peak of a plan and its timeline, from what is known already; None if nothing is.

        Called when a search ends.
        """
        return None

    def bounded(self) -> Collection[str] | None:
        """Returns the keys of the combinations of which a plan may have an estimate with a bound; None: of any.

        A large space is searched faster if other combinations need not be asked about.
        """
        return None

    @abstractmethod
    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the estimated peak, or None. A bound that is not sound is None."""
