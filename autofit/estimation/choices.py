"""Choices: the knob values whose memory an estimate looks at, from what the knobs say of themselves."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan, same_value


@dataclass(frozen=True, slots=True)
class Choice:
    """One knob's value beside the baseline's values of all other knobs.

    Attributes:
        knob: name of the knob; "" for the baseline where no knob changes the memory per sample.
        value: value of the knob.
        is_baseline: whether the value is the baseline's.
        same_memory: whether the value has the memory per sample of the baseline's.
    """

    knob: str = ""
    value: KnobValue = ""
    is_baseline: bool = True
    same_memory: bool = True

    def of(self, baseline: Plan) -> Plan:
        """Returns the combination of this choice."""
        return baseline.combination.replace(**{self.knob: self.value}) if self.knob else baseline.combination


def choices(knobs: Sequence[Knob]) -> tuple[Choice, ...]:
    """Returns the values to look at, one knob at a time. The baseline is among them once."""
    return tuple(_choices(knobs)) or (Choice(),)


def _choices(knobs: Sequence[Knob]) -> Iterator[Choice]:
    gradual, first = traded(knobs), True
    for knob in knobs:
        if knob is gradual or all(_is_same(knob, value) for value in knob.values):
            continue
        for value in knob.values:
            if first or not same_value(value, knob.default):
                yield Choice(knob.name, value, same_value(value, knob.default), _is_same(knob, value))
        first = False


def traded(knobs: Iterable[Knob]) -> Knob | None:
    """Returns the knob of which an estimate finds the smallest value that suffices: the first that trades memory."""
    return next((knob for knob in knobs if knob.trades_memory is not None), None)


def _is_same(knob: Knob, value: KnobValue) -> bool:
    return any(same_value(value, each) for each in (knob.default, *knob.same_memory))
