"""First feasible plan: which plan to run while none has fitted yet."""

from collections.abc import Mapping
from itertools import islice

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.searchers.base import Problem

MAX_TRIED = 8
"""Maximum number of combinations with several changes that are tried, after each change alone."""
MAX_COMBINATIONS = 4096
"""Maximum number of combinations that are considered."""


def first_feasible(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns the plan to run while none has fitted, or None when nothing is left to try.

    The order is: the baseline, or the largest size of its combination that is estimated to fit; smaller sizes, down to
    the smallest; at that size, or the smallest that it admits, each change alone, and then the combinations with the
    most changes.

    Args:
        problem: what the searcher was given.
        outcomes: outcomes of the plans that were tried.
    """
    smaller = _smaller(problem, outcomes)
    return smaller if smaller is not None else _leaner(problem, outcomes)


def _smaller(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns a smaller size of the baseline's combination, or None."""
    space, base = problem.space, problem.space.baseline.combination
    first = space.baseline.micro_batch_size
    tried = [plan.micro_batch_size for plan in outcomes if plan.combination == base]
    failed = any(outcome.status.at_any_size for plan, outcome in outcomes.items() if plan.combination == base)
    sizes = [s for s in sorted({*space.sizes, first}) if s <= first and (not tried or 2 * s <= min(tried))]
    if tried and not sizes:
        sizes = [s for s in space.sizes[:1] if s < min(tried)]
    if failed or not sizes:
        return None
    plans = [space.baseline if size == first else space.at(base, size) for size in sizes]
    return next((plan for plan in reversed(plans) if _fits(problem, plan)), plans[-1] if not tried else plans[0])


def _fits(problem: Problem, plan: Plan) -> bool:
    estimate = problem.feasibility.estimate(plan)
    return estimate is None or (estimate.upper_bytes or estimate.value_bytes) <= problem.memory_bytes


def _leaner(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns another combination at its smallest size: single changes first, then those with the most changes."""
    space, base = problem.space, problem.space.baseline.combination
    tried = {plan.combination.key for plan in outcomes}
    combinations = [c for c in islice(space.combinations(), MAX_COMBINATIONS) if c != base]
    singles = [c for c in combinations if len(c.changes_from(base)) == 1]
    many = sorted((c for c in combinations if len(c.changes_from(base)) > 1), key=lambda c: -len(c.changes_from(base)))
    ran = sum(c.key in tried for c in many)
    left = [c for c in (*singles, *(many if ran < MAX_TRIED else ())) if c.key not in tried]
    return next((plan for c in left if (plan := _smallest(space, c)) is not None), None)


def _smallest(space: SearchSpace, combination: Plan) -> Plan | None:
    """Returns the plan with the smallest size at which a combination may run, or None."""
    plans = (space.at(combination, size) for size in space.sizes)
    return next((plan for plan in plans if space.violation(plan) is None), None)
