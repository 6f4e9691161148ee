"""Estimator: says how much memory a plan needs without running it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from autofit.core.account import Account
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.memory.profile import Profile
from autofit.memory.trace import Trace

Tracer = Callable[[Plan], Trace]
"""Traces a plan. Raises `Untraceable` where that is impossible, and `SpaceError` where the plan cannot be applied."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an estimator may work with.

    Attributes:
        limit_bytes: the memory budget.
        account: how the device keeps account of memory; None where it does not say.
        allowance_s: seconds that all traces of a search may take; None for no limit.
        trace: traces a plan; None where nothing can be traced.
        record: runs a few steps of a plan that cannot be traced, and raises as a tracer does; None where nothing can.
    """

    limit_bytes: int
    account: Account | None = None
    allowance_s: float | None = None
    trace: Tracer | None = None
    record: Tracer | None = None


class Estimator(ABC):
    """Estimates the memory peak of a plan.

    Made once per `tune()`, in the process that runs the loop. The loop tells it every trial. `estimate` may be called
    at any time and must be cheap. Its answer for a plan changes only after `tell`, `refine` or `refine_all`.
    """

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Returns an estimator for a search, or None where it has nothing to work with."""
        return cls()

    @property
    def caveat(self) -> str:
        """What a person should know of these estimates once the search has ended; "" where there is nothing."""
        return ""

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial."""

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Spends time to estimate a plan better that is about to be screened; may take seconds, unlike `estimate`.

        Args:
            plan: what is asked for.
            along: all plans of its combination that may be asked for, smallest micro batch first; () for it alone.
        """
        return

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Spends time to estimate plans better that are worth knowing before any runs, the most telling first.

        May leave out the last ones where that takes long.
        """
        return

    def profile(self, plan: Plan) -> Profile | None:
        """Returns what makes up the peak of a plan and its timeline, from what is known already; None if nothing is.

        Called when a search ends.
        """
        return None

    @abstractmethod
    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the estimated peak, or None for no opinion. Without a sound bound the bound is None."""
