"""Plan: a value for each knob. Plans are measured, recommended, applied and exported."""

import json
from collections.abc import Mapping
from functools import cached_property

from autofit.core.strict import Strict

KnobValue = bool | int | str

MICRO_BATCH_SIZE = "micro_batch_size"
ACCUMULATION_STEPS = "accumulation_steps"

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def same_value(one: object, other: object) -> bool:
    """Returns whether two knob values are equal, including their type: `1` is neither `True` nor `1.0`."""
    return type(one) is type(other) and one == other


class Plan(Strict):
    """A value for each knob in play.

    A knob without a value keeps the user's setting. The empty plan changes nothing.
    """

    values: Mapping[str, KnobValue] = {}

    @cached_property
    def key(self) -> str:
        """The plan as canonical JSON. Equal plans have equal keys in every process and version."""
        return _CANONICAL.encode(dict(self.values))

    @property
    def micro_batch_size(self) -> int:
        """Samples per forward pass."""
        return int(self.values[MICRO_BATCH_SIZE])

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes per optimizer step."""
        return int(self.values.get(ACCUMULATION_STEPS, 1))

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step."""
        return self.micro_batch_size * self.accumulation_steps

    @cached_property
    def combination(self) -> "Plan":
        """The plan without its micro batch size and accumulation steps."""
        batch = (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)
        return Plan(values={k: v for k, v in self.values.items() if k not in batch})

    def replace(self, **values: KnobValue) -> "Plan":
        """Returns a copy with these values set."""
        return Plan(values={**self.values, **values})

    def changes_from(self, other: "Plan") -> dict[str, KnobValue]:
        """Returns the values of this plan that differ from those of `other`."""
        return {k: v for k, v in self.values.items() if not same_value(v, other.values.get(k))}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items()) or "as it is"
