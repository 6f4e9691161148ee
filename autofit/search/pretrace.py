"""Ahead: the plans whose memory is worth knowing before any runs.

They are the user's own combination where it ceases to fit, and each single change of it where its memory decides: at
the smallest micro batch that is not thought to fit with the change. Further down, what stays between steps and the
update make the peak, and a change that saves activations shows nothing. What it does to the peak there says what it
does elsewhere and beside other changes (`autofit.searchers.guided.feasibility`).
"""

from collections.abc import Callable
from itertools import zip_longest

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace

SCARCE_RATIO = 0.5
"""Memory decides nothing where all sizes of the user's own combination need less than this share of the budget."""


def worth_knowing(space: SearchSpace, estimate: Callable[[Plan], Estimate | None], memory_bytes: int) -> list[Plan]:
    """Returns the plans to look at, the most telling first: the knobs in turn, of each its last and most extreme value.

    Args:
        space: what will be searched.
        estimate: estimates the peak of a plan; where it has nothing to say of the user's own combination at some size,
            there is nothing to start from and the list is empty.
        memory_bytes: the budget.
    """
    own = [space.at(space.baseline.combination, size) for size in space.sizes]
    peaks = {plan.micro_batch_size: e.value_bytes for plan in own if (e := estimate(plan)) is not None}
    if len(peaks) < max(len(own), 2) or max(peaks.values()) <= SCARCE_RATIO * memory_bytes:
        return []
    turns = zip_longest(*(_changed(knob, space.baseline) for knob in space.facts.knobs))
    changes = [change for turn in turns for change in turn if change is not None]
    plans = [space.at(plan.combination, _deciding(peaks, growth, memory_bytes)) for plan, growth in changes]
    over = [plan for plan in own if peaks[plan.micro_batch_size] > memory_bytes]
    within = [plan for plan in own if peaks[plan.micro_batch_size] <= memory_bytes]
    return [*within[-1:], *over[:1], *(plan for plan in plans if space.violation(plan) is None)]


def _changed(knob: Knob, own: Plan) -> list[tuple[Plan, float]]:
    """Returns the plan with each other value of a knob, and what theory says it does to the part that grows."""
    growth = knob.growth or (1.0,) * len(knob.values)
    changed = [(own.replace(**{knob.name: v}), g) for v, g in zip(knob.values, growth, strict=True)]
    return [(plan, g) for plan, g in reversed(changed) if plan != own]


def _deciding(peaks: dict[int, int], growth: float, memory_bytes: int) -> int:
    """Returns the smallest size too large when the part of the peak that grows is multiplied; the largest if none."""
    sizes = sorted(peaks)
    low, high = sizes[-2:]
    slope = (peaks[high] - peaks[low]) / (high - low)
    stays = max(peaks[high] - slope * high, 0.0)
    return min((size for size in sizes if stays + growth * (peaks[size] - stays) > memory_bytes), default=sizes[-1])
