"""The table of strategies in README.md, made from what each member says of itself."""

from collections.abc import Iterable

from autofit.core.strategy_record import EFFECT_ON_RESULTS
from autofit.strategies import BUILT_IN
from autofit.strategies.base import Strategy

BEGIN, END = "<!-- strategies: made by `python -m scripts.readme strategies` -->", "<!-- end of the strategies -->"


def block(members: Iterable[type[Strategy]] = BUILT_IN) -> str:
    """Returns the part of README.md from `BEGIN` to `END`: a row for each strategy, in the order of the family."""
    rows = [(f"`{each.name}`", each.about, each.cost, EFFECT_ON_RESULTS[each.effect]) for each in members]
    lines = [("strategy", "what it does", "what it costs", "effect"), ("---",) * 4, *rows]
    return "\n".join([BEGIN, *(f"| {' | '.join(line)} |" for line in lines), END])
