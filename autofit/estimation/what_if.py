"""What-if: the peaks of several choices at any micro batch, for a page that shows what fits where."""

from collections.abc import Callable, Iterator, Sequence

from autofit.core.briefing import Briefing
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.estimation.choices import choices, traded
from autofit.estimation.records import PeakLaw
from autofit.estimators import Traced, Tracer

AtLength = Callable[[int], Tracer]
"""Returns what traces plans at a sequence length."""
MOST_SIZES = 3
"""Maximum number of micro batch sizes that are traced for each choice. A trace takes a second or two."""


def peak_laws(
    briefing: Briefing, tracer: Tracer, sizes: Sequence[int], at_length: AtLength | None = None
) -> tuple[PeakLaw, ...]:
    """Returns the peaks of each choice with memory of its own, for the first and the last value of the traded knob.

    Args:
        briefing: what is known about the workload.
        tracer: traces its plans.
        sizes: possible micro batch sizes, ascending.
        at_length: returns what traces its plans at another sequence length. Half and twice the loader's are traced, at
            the first and the last size; a length at which the step of the baseline fails is left out.
    """
    assert briefing.account is not None, "a bench that traces has an account"
    account, limit_bytes, length = briefing.account, briefing.budget.memory_bytes, briefing.sequence_length
    laws = [*_laws(briefing, Traced(tracer, account, limit_bytes), spaced(sizes, MOST_SIZES))]
    if at_length is not None and length is not None and length > 1:
        for other in (length // 2, 2 * length):
            traced = Traced(at_length(other), account, limit_bytes)
            if _parts(briefing, traced, briefing.space.baseline, sizes[:1]):
                found = _laws(briefing, traced, spaced(sizes, MOST_SIZES - 1))
                laws += [law.model_copy(update={"length": other}) for law in found]
    return tuple(laws)


def spaced(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Returns the first and the last of ascending values, and at most `most` in all, by ratio as evenly as possible."""
    if len(values) <= most:
        return tuple(values)
    growth = (values[-1] / max(values[0], 1)) ** (1 / (most - 1))

    def nearest(wanted: float) -> int:
        return min(values, key=lambda value: abs(value - wanted))

    return tuple(sorted({nearest(values[0] * growth**place) for place in range(most)}))


def _laws(briefing: Briefing, traced: Traced, sizes: Sequence[int]) -> Iterator[PeakLaw]:
    knob = traded(briefing.space.knobs)
    counts = (0,) if knob is None else (int(knob.values[0]), int(knob.values[-1]))
    for choice in choices(briefing.space.knobs):
        if choice.same_memory and not choice.is_baseline:
            continue
        for count in counts:
            combination = choice.of(briefing.space.baseline)
            combination = combination if knob is None else combination.replace(**{knob.name: count})
            if parts := _parts(briefing, traced, combination, sizes):
                yield PeakLaw(knob=choice.knob, value=choice.value, traded=count, sizes=tuple(sizes), parts=parts)


def _parts(briefing: Briefing, traced: Traced, combination: Plan, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns the parts of the peak at each size; {} if the combination conflicts or cannot be traced."""
    space = SearchSpace(briefing.space)
    if space.conflict(combination):
        return {}
    try:
        plans = [space.at(combination, size) for size in sizes]
    except SpaceError:
        return {}
    found = list[dict[str, int]]()
    for plan in plans:
        traced.show(plan)
        profile = traced.profile(plan)
        if profile is None:
            return {}
        found.append({part.name: part.size_bytes for part in profile.breakdown.kinds})
    names = {name: None for each in found for name in each}
    return {name: tuple(each.get(name, 0) for each in found) for name in names}
