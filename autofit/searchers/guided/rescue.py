"""Rescue: which plan to run while none has fitted yet."""

from collections.abc import Mapping
from itertools import islice

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.searchers.base import Problem

TRIED = 8
"""Combinations of several changes that are tried at most, after each change alone."""
CONSIDERED = 4096


def rescue(problem: Problem, known: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns the plan to run while none has fitted, or None when nothing is left to try.

    The user's own plan, or the largest size of their combination that is estimated to fit; then down to the smallest
    size; then there each change alone, and what changes most.

    Args:
        problem: what the searcher was given.
        known: what became of the plans that were tried.
    """
    own = _smaller(problem, known)
    return own if own is not None else _leaner(problem, known)


def _smaller(problem: Problem, known: Mapping[Plan, Outcome]) -> Plan | None:
    space, base = problem.space, problem.space.baseline.combination
    home = space.baseline.micro_batch_size
    tried = [plan.micro_batch_size for plan in known if plan.combination == base]
    failed = any(outcome.status.at_any_size for plan, outcome in known.items() if plan.combination == base)
    sizes = [s for s in sorted({*space.sizes, home}) if s <= home and (not tried or 2 * s <= min(tried))]
    if tried and not sizes:
        sizes = [s for s in space.sizes[:1] if s < min(tried)]
    if failed or not sizes:
        return None
    plans = [space.baseline if size == home else space.at(base, size) for size in sizes]
    return next((plan for plan in reversed(plans) if _fits(problem, plan)), plans[-1] if not tried else plans[0])


def _fits(problem: Problem, plan: Plan) -> bool:
    estimate = problem.estimate(plan)
    return estimate is None or (estimate.upper_bytes or estimate.value_bytes) <= problem.memory_bytes


def _leaner(problem: Problem, known: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns another combination at the smallest size: single changes first, then those with the most changes."""
    space, base = problem.space, problem.space.baseline.combination
    size = space.sizes[0]
    tried = {plan.combination.key for plan in known}
    combinations = [c for c in islice(space.combinations(), CONSIDERED) if c != base]
    singles = [c for c in combinations if len(c.changes_from(base)) == 1]
    fitting = [c for c in singles if c.key not in tried]
    if fitting:
        return space.at(fitting[0], size)
    most = sorted((c for c in combinations if len(c.changes_from(base)) > 1), key=lambda c: -len(c.changes_from(base)))
    ran = sum(c.key in tried for c in most)
    left = [c for c in most if c.key not in tried]
    return space.at(left[0], size) if left and ran < TRIED else None
