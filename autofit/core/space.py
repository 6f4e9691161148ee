"""SearchSpace: the knobs in play with their strategies, and the constraints on their combinations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.strict import Strict

Effect = Literal["exact", "rounding", "changes the result"]
"""What a strategy does to trained values: nothing, another order or precision of their arithmetic, something else."""

EFFECT_ON_RESULTS: dict[Effect, str] = {
    "exact": "results are the same",
    "rounding": "results differ by rounding",
    "changes the result": "changes the result",
}
"""The effects as they are shown."""


class StrategyRecord(Strict):
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


MAX_PLANS = 1_000_000
"""Maximum number of plans of a search space. The default searcher estimates all of them before each probe."""


class Refusal(Strict):
    """A strategy, or one value of a knob, that is left out of the search, with the reason.

    Attributes:
        name: the strategy, or the knob with its value; `reason` says why it is left out.
        origin: "gate" for a check of this model's gradient, "device" for a missing capability, "" for anything else.
    """

    name: str
    reason: str
    origin: Literal["", "gate", "device"] = ""


class Conflict(Strict):
    """Knob values that do not go together, with the reason. No plan that has all of them is in the space."""

    values: Mapping[str, KnobValue]
    reason: str

    def applies_to(self, plan: Plan) -> bool:
        """Returns whether a plan has all of the values."""
        return all(same_value(plan.values.get(name), value) for name, value in self.values.items())


class SpaceFacts(Strict):
    """A search space as data, as a child process reports it.

    Attributes:
        knobs: the knobs in play, without micro batch size and accumulation steps.
        sizes: micro batch sizes that may be run, ascending.
        global_batch_size: samples per optimizer step to keep exactly; None if the batch is free.
        baseline: the user's plan.
        refused: strategies and knob values that were left out, with the reason: of a gate first, of the device last.
        forbidden: values that do not go together. The first one that applies to a plan gives the reason.
        pinned: values that every plan must have; the baseline may be measured without them, but not recommended.
        batch_limit: what limits the size of a free batch and how to raise it, in words; "" without such a limit.
        strategies: what the strategies that are searched do.
    """

    knobs: tuple[Knob, ...]
    sizes: tuple[int, ...]
    global_batch_size: int | None
    baseline: Plan
    refused: tuple[Refusal, ...] = ()
    forbidden: tuple[Conflict, ...] = ()
    pinned: dict[str, KnobValue] = {}
    batch_limit: str = ""
    strategies: tuple[StrategyRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The plans that may be proposed: all combinations of knob values, at all micro batch sizes.

    Plans with another value than a pinned one are among them, since a searcher may learn from their estimates; they
    are not run.

    Attributes:
        facts: the space as data.
    """

    facts: SpaceFacts

    @property
    def sizes(self) -> tuple[int, ...]:
        """Micro batch sizes that may be run, ascending."""
        return self.facts.sizes

    @property
    def baseline(self) -> Plan:
        """The user's plan, which is always in the space."""
        return self.facts.baseline

    def combinations(self) -> Iterator[Plan]:
        """Yields every allowed combination, the baseline's first.

        Values are chosen knob by knob, and a conflict is met at the last of its knobs: its combinations are not formed.
        """
        first, names = self.baseline.combination, set[str]()
        begun = iter([Plan()] if all(conflict.values for conflict in self.facts.forbidden) else [])
        for knob in self.facts.knobs:
            names.add(knob.name)
            met = [one for one in self.facts.forbidden if knob.name in one.values and names >= one.values.keys()]
            begun = _extended(begun, knob, met)
        yield first
        yield from (plan for plan in begun if plan != first)

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
        return self._stranger(plan.combination) or self.conflict(plan) or self._misfit(plan) or self.unpinned(plan)

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
        if (expected := self.at(plan.combination, size)) != plan:
            found = f"it has {size} x {plan.accumulation_steps} samples per optimizer step"
            return f"{found}, and this search runs {size} x {expected.accumulation_steps}"
        kind, way = ("one_pass", "does not admit") if plan.accumulation_steps > 1 else ("accumulated", "needs")
        wrong = ((k.name, v) for k in self.facts.knobs for v in getattr(k, kind) if same_value(v, plan.values[k.name]))
        return next((f"{name}={value} {way} accumulation" for name, value in wrong), None)

    def _stranger(self, plan: Plan) -> str | None:
        """Returns which value of a combination is not one of the knobs in play, in words, or None."""
        for knob in self.facts.knobs:
            value = plan.values.get(knob.name)
            if value is None:
                return f"the plan has no value for {knob.name}"
            if not knob.admits(value):
                return f"{knob.name}={value} is not one of {', '.join(map(str, knob.values))}"
        unknown = sorted(set(plan.values) - {knob.name for knob in self.facts.knobs})
        if unknown:
            return f"no strategy in play owns {', '.join(unknown)}"
        return None

    def conflict(self, plan: Plan) -> str | None:
        """Returns why values of a plan do not go together, or None."""
        return next((conflict.reason for conflict in self.facts.forbidden if conflict.applies_to(plan)), None)


def _extended(begun: Iterator[Plan], knob: Knob, forbidden: Sequence[Conflict]) -> Iterator[Plan]:
    """Yields each plan with each value of a further knob, unless a conflict applies."""
    for plan in begun:
        for longer in (plan.replace(**{knob.name: value}) for value in knob.values):
            if not any(conflict.applies_to(longer) for conflict in forbidden):
                yield longer


def divisors(number: int) -> tuple[int, ...]:
    """Returns the divisors of `number`, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


class Basis(StrEnum):
    """Evidence behind a reason."""

    MEASURED = "measured"  # a plan that ran and failed
    ESTIMATED = "estimated"  # bounds on memory
    ASSUMED = "assumed"  # inferred from similar plans


class Omission(Strict):
    """The reason why no plan of a combination was measured.

    Attributes:
        plan: the plan of the combination that was closest to being run.
        basis: evidence behind the reason.
        reason: the reason, in words.
    """

    plan: Plan
    basis: Basis
    reason: str
