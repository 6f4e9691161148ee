"""SearchSpace: the knobs in play, and the constraints on their combinations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from pydantic import BaseModel, ConfigDict

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan, same_value


class Refusal(BaseModel):
    """A strategy, or one value of a knob, that is left out of the search, with the reason.

    Attributes:
        name: the strategy, or the knob with its value; `reason` says why it is left out.
        origin: "gate" for a check of this model's gradient, "device" for a missing capability, "" for anything else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    reason: str
    origin: Literal["", "gate", "device"] = ""


class SpaceFacts(BaseModel):
    """A search space as data, as a child process reports it.

    Attributes:
        knobs: the knobs in play, without micro batch size and accumulation steps.
        sizes: micro batch sizes that may be run, ascending.
        global_batch_size: samples per optimizer step to keep exactly; None if the batch is free.
        baseline: the user's plan.
        refused: strategies and knob values that were left out, with the reason; those of a gate first, those of the
            device last.
        forbidden: keys of combinations that conflict, with the reason.
        pinned: values that every plan must have; the baseline may be measured without them, but not recommended.
        batch_limit: what limits the size of a free batch and how to raise it, in words; "" without such a limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: tuple[Knob, ...]
    sizes: tuple[int, ...]
    global_batch_size: int | None
    baseline: Plan
    refused: tuple[Refusal, ...] = ()
    forbidden: dict[str, str] = {}
    pinned: dict[str, KnobValue] = {}
    batch_limit: str = ""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The plans that may be proposed: all combinations of knob values, at all micro batch sizes.

    Plans with another value than a pinned one are among them, since a searcher may learn from their estimates; they
    are not run.

    Attributes:
        facts: the space as data.
        conflict: returns why a combination is forbidden, or None.
    """

    facts: SpaceFacts
    conflict: Callable[[Plan], str | None] = field(default=lambda plan: None)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Micro batch sizes that may be run, ascending."""
        return self.facts.sizes

    @property
    def baseline(self) -> Plan:
        """The user's plan, which is always in the space."""
        return self.facts.baseline

    def combinations(self) -> Iterator[Plan]:
        """Yields every allowed combination, the baseline's first."""
        first = self.baseline.combination
        yield first
        for values in product(*(knob.values for knob in self.facts.knobs)):
            plan = Plan(values=dict(zip((k.name for k in self.facts.knobs), values, strict=True)))
            if plan != first and self._conflict(plan) is None:
                yield plan

    def at(self, combination: Plan, micro_batch_size: int) -> Plan:
        """Returns the plan of a combination at a micro batch size, keeping the global batch size exactly.

        Raises:
            SpaceError: the micro batch size does not divide the global batch size.
        """
        total = self.facts.global_batch_size
        if total is not None and total % micro_batch_size:
            raise SpaceError(
                f"micro batch {micro_batch_size} does not divide the global batch {total}, which is kept exactly."
            )
        steps = 1 if total is None else total // micro_batch_size
        batch: dict[str, KnobValue] = {MICRO_BATCH_SIZE: micro_batch_size, ACCUMULATION_STEPS: steps}
        return Plan(values={**batch, **combination.values})

    def plans(self) -> Iterator[Plan]:
        """Yields every plan once, the baseline first."""
        yield self.baseline
        for combination in self.combinations():
            for size in self.sizes:
                plan = self.at(combination, size)
                if plan != self.baseline and self._misfit(plan) is None:
                    yield plan

    def violation(self, plan: Plan) -> str | None:
        """Returns why `plan` is not in the space, or None if it is. The baseline always is."""
        if plan == self.baseline:
            return None
        return self._conflict(plan.combination) or self._misfit(plan) or self.unpinned(plan)

    def unpinned(self, plan: Plan) -> str | None:
        """Returns why a plan or a combination may not be recommended: a pinned knob has another value. Else None."""
        for name, value in self.facts.pinned.items():
            if not same_value(plan.values.get(name, value), value):
                return f"{name} is pinned to {value}"
        return None

    def _misfit(self, plan: Plan) -> str | None:
        """Returns why the batch of `plan` may not be run, or None."""
        size = plan.values.get(MICRO_BATCH_SIZE)
        if not isinstance(size, int) or size not in self.sizes:
            return f"{MICRO_BATCH_SIZE}={size} is not a size that may be run"
        if self.at(plan.combination, size) != plan:
            total = self.facts.global_batch_size
            why = "needed for a free batch" if total is None else f"the global batch {total}"
            return f"{plan.accumulation_steps} accumulation steps of {size} are not {why}"
        if plan.accumulation_steps > 1:
            whole = {k.name: v for k in self.facts.knobs for v in k.one_pass if same_value(v, plan.values[k.name])}
            return next((f"{name}={value} does not admit accumulation" for name, value in whole.items()), None)
        return None

    def _conflict(self, plan: Plan) -> str | None:
        """Returns why a combination is not allowed, or None."""
        for knob in self.facts.knobs:
            value = plan.values.get(knob.name)
            if value is None:
                return f"the plan has no value for {knob.name}"
            if not knob.admits(value):
                return f"{knob.name}={value} is not one of {', '.join(map(str, knob.values))}"
        unknown = sorted(set(plan.values) - {knob.name for knob in self.facts.knobs})
        if unknown:
            return f"no strategy in play owns {', '.join(unknown)}"
        return self.facts.forbidden.get(plan.combination.key) or self.conflict(plan)


def divisors(number: int) -> tuple[int, ...]:
    """Returns the divisors of `number`, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)
