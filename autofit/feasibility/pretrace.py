"""Pretrace: chooses the plans to estimate before any plan runs.

These are the baseline's combination around the size at which it ceases to fit, and each single change of it at the
size where its memory matters most: the smallest micro batch that is not expected to fit with the change. At smaller
sizes, the static memory and the optimizer update make the peak, and a change that saves activations has no effect
there. The effect of a change at this size carries over to other sizes and to combinations with other changes
(`autofit.feasibility.peak_model`).
"""

from collections.abc import Callable
from itertools import zip_longest

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace

SCARCE_RATIO = 0.5
"""Memory is not scarce if the baseline's combination needs less than this share of the budget at every size."""


def plans_to_estimate(space: SearchSpace, estimate: Callable[[Plan], Estimate | None], memory_bytes: int) -> list[Plan]:
    """Returns the plans to estimate, the most informative first: the knobs in turn, each from its last value.

    Args:
        space: the space that will be searched.
        estimate: estimates the peak of a plan. The result is empty where it has no estimate for the baseline's
            combination at some size.
        memory_bytes: the budget.
    """
    baseline = [space.at(space.baseline.combination, size) for size in space.sizes]
    peaks = {plan.micro_batch_size: e.value_bytes for plan in baseline if (e := estimate(plan)) is not None}
    if len(peaks) < max(len(baseline), 2) or max(peaks.values()) <= SCARCE_RATIO * memory_bytes:
        return []
    turns = zip_longest(*(_changed(knob, space.baseline) for knob in space.facts.knobs))
    changes = [change for turn in turns for change in turn if change is not None]
    plans = [space.at(plan.combination, _critical_size(peaks, growth, memory_bytes)) for plan, growth in changes]
    over = [plan for plan in baseline if peaks[plan.micro_batch_size] > memory_bytes]
    within = [plan for plan in baseline if peaks[plan.micro_batch_size] <= memory_bytes]
    return [*within[-1:], *over[:1], *(plan for plan in plans if space.violation(plan) is None)]


def _changed(knob: Knob, baseline: Plan) -> list[tuple[Plan, float]]:
    """Returns the baseline with each other value of a knob, and the expected factor on the part that grows."""
    growth = knob.growth or (1.0,) * len(knob.values)
    changed = [(baseline.replace(**{knob.name: v}), g) for v, g in zip(knob.values, growth, strict=True)]
    return [(plan, g) for plan, g in reversed(changed) if plan != baseline]


def _critical_size(peaks: dict[int, int], growth: float, memory_bytes: int) -> int:
    """Returns the smallest size that is too large once the growing part is multiplied; the largest if none is."""
    sizes = sorted(peaks)
    low, high = sizes[-2:]
    slope = (peaks[high] - peaks[low]) / (high - low)
    fixed = max(peaks[high] - slope * high, 0.0)
    return min((size for size in sizes if fixed + growth * (peaks[size] - fixed) > memory_bytes), default=sizes[-1])
