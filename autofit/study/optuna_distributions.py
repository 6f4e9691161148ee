"""How the knobs of a search space are stored in Optuna: as parameters with distributions."""

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, same_value
from autofit.core.space import SpaceFacts

_LARGEST_SIZE = 2**20  # one range for every search, so that a parameter is comparable in all trials


def distributions_of(space: SpaceFacts) -> dict[str, BaseDistribution]:
    """Returns the Optuna distribution of each knob. Integer ranges may change within a study, choices may not."""
    sizes = IntDistribution(1, _LARGEST_SIZE, log=True)
    found: dict[str, BaseDistribution] = {MICRO_BATCH_SIZE: sizes, ACCUMULATION_STEPS: sizes}
    for knob in space.knobs:
        if knob.name in found:
            continue
        numbers = [value for value in knob.values if type(value) is int]
        whole = len(numbers) == len(knob.values)
        found[knob.name] = (
            IntDistribution(min(numbers), max(numbers)) if whole else CategoricalDistribution(knob.values)
        )
    return found


def holds(distribution: BaseDistribution | None, value: KnobValue) -> bool:
    """Returns whether Optuna can store `value` as a parameter. The record contains it in any case."""
    if isinstance(distribution, IntDistribution):
        return type(value) is int and distribution.low <= value <= distribution.high
    choices = distribution.choices if isinstance(distribution, CategoricalDistribution) else ()
    return any(same_value(choice, value) for choice in choices)


def domain(distribution: BaseDistribution) -> str:
    """Describes the part of a distribution that must not change within a study."""
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(map(str, distribution.choices))
    return "integers"
