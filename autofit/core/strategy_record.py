"""StrategyRecord: what a strategy does, costs and changes, in phrases that can be shown without torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Effect = Literal["exact", "rounding", "changes the result"]
"""What a strategy does to trained values: nothing, another order or precision of their arithmetic, something else."""

EFFECT_ON_RESULTS: dict[Effect, str] = {
    "exact": "results are the same",
    "rounding": "results differ by rounding",
    "changes the result": "changes the result",
}
"""The effects as they are shown."""


class StrategyRecord(BaseModel):
    """What a strategy does, costs and changes.

    Attributes:
        name: name of the strategy.
        knobs: names of its knobs.
        about: what it does, in a phrase; "" if unknown.
        cost: what it costs, in a phrase: "nothing" if it has no cost, "" if unknown.
        effect: what it does to the values that are trained.
        words: its values in words, by "knob=value", where "VALUE KNOB" does not say it well.
        parts: for a knob that counts parts of the model, such as its blocks, how many there are; {} if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    knobs: tuple[str, ...]
    about: str
    cost: str
    effect: Effect
    words: dict[str, str] = {}
    parts: dict[str, int] = {}

    def __str__(self) -> str:
        cost = f"costs {self.cost}" if self.cost else ""
        return f"{self.name}: {'; '.join(filter(None, (self.about, cost, EFFECT_ON_RESULTS[self.effect])))}"
