"""First feasible plan: which plan to run while none has fitted yet."""

from collections.abc import Mapping

import numpy as np

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.searchers.base import Problem

MAX_TRIED = 8
"""Maximum number of combinations with several changes that are tried, after each change alone."""


def first_feasible(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns the plan to run while none has fitted, or None when nothing is left to try.

    The order is: the baseline, or the largest size of its combination that is estimated to fit; smaller sizes, down to
    the smallest; at that size, or the smallest that it admits, each change alone, and then the combinations with the
    most changes. Sizes at which the user's code failed, and smaller ones, are not tried in other combinations.

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
    plans = problem.feasibility.plans
    base, users = problem.space.baseline.combination, problem.space.baseline.micro_batch_size
    failed = [p.micro_batch_size for p, o in outcomes.items() if o.status.of_users_code and p.combination == base]
    allowed = np.flatnonzero(
        ~plans.barred() & (plans.sizes > max((size for size in failed if size < users), default=0))
    )
    numbers, at = np.unique(plans.points.combinations[allowed], return_index=True)
    places = allowed[at]  # of each combination, at its smallest size
    changes = (plans.points.values[places] != plans.points.values[0]).sum(axis=1)
    tried = {plans.number(plan) for plan in outcomes}
    single = next((index for index in np.flatnonzero(changes == 1) if numbers[index] not in tried), None)
    if single is not None:
        return plans.plans[int(places[single])]
    many = [index for index in np.argsort(-changes, kind="stable") if changes[index] > 1]
    ran = sum(numbers[index] in tried for index in many)
    left = next((index for index in many if numbers[index] not in tried), None)
    return plans.plans[int(places[left])] if left is not None and ran < MAX_TRIED else None
