"""StrategyRecord: what a strategy does, costs and changes, in phrases that can be shown without torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Effect = Literal["exact", "rounding", "changes the result"]
"""What a strategy does to the values that are trained: nothing; another order or precision of the same arithmetic; or
something else is computed, such as another optimizer state or another order of samples."""

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
        about: what it does, in a phrase; "" if it does not say.
        cost: what it costs, in a phrase: "nothing" if it has no cost, "" if it does not say.
        effect: what it does to the values that are trained.
        parts: for a knob that counts parts of the model, such as its blocks, how many there are; {} if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    knobs: tuple[str, ...]
    about: str
    cost: str
    effect: Effect
    parts: dict[str, int] = {}

    def __str__(self) -> str:
        cost = f"costs {self.cost}" if self.cost else ""
        return f"{self.name}: {'; '.join(filter(None, (self.about, cost, EFFECT_ON_RESULTS[self.effect])))}"
