"""Usual plans: what an expert writes at once on an accelerator, which runs before the model decides."""

from collections.abc import Iterator

from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SearchSpace

LARGER = 4
"""The usual values run at the largest size of up to this many times the user's micro batch, then at that size."""


def usual_plans(space: SearchSpace) -> list[Plan]:
    """Returns the baseline with the usual value of each knob (`Knob.usual`): at a larger micro batch, then at its own.

    Plans with less follow, for a time budget in which the first cannot warm up. None if no knob has a usual value.
    """
    knobs = [knob for knob in space.facts.knobs if knob.usual is not None and knob.name not in space.facts.pinned]
    every: dict[str, KnobValue] = {knob.name: knob.usual for knob in knobs if knob.usual is not None}
    quick = {knob.name: every[knob.name] for knob in knobs if not knob.warm_up_s}
    found = [plan for values in (every, quick) if values for plan in _at_sizes(space, values)]
    return list({plan.key: plan for plan in found if plan != space.baseline}.values())


def _at_sizes(space: SearchSpace, values: dict[str, KnobValue]) -> Iterator[Plan]:
    """Yields the plan with these values at a larger micro batch and at the baseline's, if they are in the space."""
    micro = space.baseline.micro_batch_size
    combination = space.baseline.replace(**values).combination
    for size in dict.fromkeys((max(size for size in space.sizes if size <= LARGER * micro), micro)):
        plan = space.at(combination, size)
        if space.violation(plan) is None:
            yield plan
