"""Conflicts: which knob values do not go together, found without a look at every combination.

A strategy says of one plan at a time whether its values conflict (`Strategy.conflict`). The number of combinations
grows with the product of all knobs, but a strategy looks at two or three of them. So each strategy is asked about plans
that record which values it looks at, and only these are varied. The answers are complete: a plan with the same values
where the strategy looks has the same answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import MAX_PLANS, Conflict, SearchSpace, SpaceFacts

_MOST_ASKED = 20_000
"""Maximum number of plans about which one strategy is asked. One that looks at three knobs needs a few hundred."""

Objection = Callable[[Plan], str | None]
"""Returns why values of a plan do not go together, or None; see `Strategy.conflict`."""


def conflicts(knobs: Sequence[Knob], objections: Sequence[Objection]) -> Iterator[Conflict]:
    """Yields the values that do not go together, those of the first strategy first.

    Args:
        knobs: the knobs in play.
        objections: for each strategy, whether it objects to a plan. The answer may depend on the plan alone.

    Raises:
        SpaceError: a strategy looks at too many knobs: it would have to be asked about too many plans.
    """
    domains = {knob.name: knob.values for knob in knobs}
    defaults = {knob.name: knob.default for knob in knobs}
    for objection in objections:
        yield from _conflicts(domains, defaults, objection)


def _conflicts(
    domains: Mapping[str, Sequence[KnobValue]], defaults: Mapping[str, KnobValue], objection: Objection
) -> Iterator[Conflict]:
    asked, begun = 0, list[dict[str, KnobValue]]([{}])
    while begun:
        decided = begun.pop()
        values = _Recorded({**defaults, **decided})
        reason = objection(Plan.model_construct(values=values))
        asked += 1
        if asked > _MOST_ASKED:
            raise SpaceError(
                f"a strategy decides by the values of {', '.join(values.read)} together whether a plan is allowed, "
                f"which needs more than {_MOST_ASKED:,} questions; search fewer strategies at a time: strategies=[...]."
            )
        undecided = next((name for name in values.read if name not in decided), None)
        if undecided is not None:
            begun += [{**decided, undecided: value} for value in reversed(domains[undecided])]
        elif reason:
            yield Conflict(values=decided, reason=reason)


def check_size(facts: SpaceFacts) -> None:
    """Checks that the plans of a space can be searched.

    Raises:
        SpaceError: there are more than `MAX_PLANS`.
    """
    most, every = MAX_PLANS // len(facts.sizes), math.prod(len(knob.values) for knob in facts.knobs)
    if every <= most:
        return
    if facts.forbidden and sum(1 for _ in islice(SearchSpace(facts).combinations(), most + 1)) <= most:
        return
    knobs = ", ".join(knob.name for knob in facts.knobs)
    raise SpaceError(
        f"there are more than {MAX_PLANS:,} plans: combinations of {knobs}, at up to {len(facts.sizes)} micro batch "
        "sizes. Search fewer strategies at a time, strategies=[...], or pin a knob."
    )


class _Recorded(Mapping[str, KnobValue]):
    """Values of a plan that record the names of those that are read, in order."""

    def __init__(self, values: Mapping[str, KnobValue]) -> None:
        self._values = values
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> KnobValue:
        value = self._values[name]
        self.read[name] = None
        return value

    def __iter__(self) -> Iterator[str]:
        self.read |= dict.fromkeys(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
