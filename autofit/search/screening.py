"""Screening: whether a plan that a searcher asked for is run at all."""

from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.feasibility import Feasibility


def reason_to_skip(plan: Plan, space: SearchSpace, feasibility: Feasibility) -> str | None:
    """Returns why a plan is not run, or None: it is not in the search space, or its memory refuses it."""
    if (violation := space.violation(plan)) is not None:
        return f"not in the search space: {violation}"
    return feasibility.refusal(plan)
