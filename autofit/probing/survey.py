"""The survey before a search: which knobs apply to this workload, and which of their values go together.

A strategy says of one plan at a time whether its values conflict (`Strategy.conflict`). The number of combinations
grows with the product of all knobs, but a strategy looks at two or three of them. So each strategy is asked about plans
that record which values it looks at, and only these are varied. The answers are complete: a plan with the same values
where the strategy looks has the same answer.

Knobs that the user gave a value are pinned: only plans with these values are searched.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.space import MAX_PLANS, Conflict, Refusal, SearchSpace, SpaceFacts
from autofit.gates.gradients import Steps, generators_restored
from autofit.gates.technique import updates_noted
from autofit.probing.block_profile import profiled
from autofit.probing.opening import baseline_notes
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies.base import Facts, Offer, Span, Strategy
from autofit.workloads.batch_store import fresh
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.workload import each_of

T = TypeVar("T")

_ORDER = ("", "device")
"""Origins of refusals in the order in which they are listed: what was found in this model comes first."""
LOOK_S = 10.0
"""Maximum number of seconds of one look at a step. A look takes milliseconds, or a second on a slow model."""
MOST_ASKED = 20_000
"""Maximum number of plans about which one strategy is asked. One that looks at three knobs needs a few hundred."""

Objection = Callable[[Plan], str | None]
"""Returns why values of a plan do not go together, or None; see `Strategy.conflict`."""


@dataclass(slots=True)
class Survey:
    """Finds the search space of a workload.

    Attributes:
        strategies: the strategies to search. The knobs of all others stay as in the baseline.
        steps: train steps, for looks at the model's blocks and at `update_fn`.
        watch: stops looks that take too long.
        pinned: value by knob; only plans with these values are searched.
        refused: what was left out, with the reason. Set by `run`.
        caveats: what the user should know of the baseline. Set by `run`.
    """

    facts: Facts
    strategies: Sequence[Strategy]
    steps: Steps
    source: BatchSource
    watch: Watchdog = field(default_factory=Watchdog)
    pinned: Mapping[str, KnobValue] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    _offered: Sequence[tuple[Strategy, Offer]] = ()

    def run(self) -> SpaceFacts:
        """Returns the search space.

        Raises:
            SpaceError: no micro batch is usable, or there are too many combinations.
        """
        facts, knobs = self.facts, self._knobs()
        self.caveats += baseline_notes(facts, self.source.user_batch_size)
        if facts.update_fn:
            self.caveats += self._in_time(lambda batch: uneven_steps(self.steps, batch))
        sizes = [facts.micro_batch_size]
        if MICRO_BATCH_SIZE in knobs:
            sizes = [int(size) for size in knobs.pop(MICRO_BATCH_SIZE).values]
        knobs.pop(ACCUMULATION_STEPS, None)
        # Values that leave no choice are in play too where they are applied: a layout, and what a model needs on ranks.
        idle = {name: value for each in self.strategies if each.for_ranks for name, value in each.owns.items()}
        playing = tuple(
            knob
            for knob in knobs.values()
            if len(knob.values) > 1 or not same_value(knob.default, idle.get(knob.name, knob.default))
        )
        baseline: dict[str, KnobValue] = {MICRO_BATCH_SIZE: facts.micro_batch_size}
        baseline |= {ACCUMULATION_STEPS: facts.accumulation_steps, **{knob.name: knob.default for knob in playing}}
        objections = [offer.objection for _, offer in self._offered if offer.objection is not None]
        space = SpaceFacts(
            knobs=playing,
            sizes=tuple(sorted({*sizes, facts.micro_batch_size})),
            global_batch_size=facts.global_batch_size,
            baseline=Plan(values=baseline),
            refused=tuple(sorted(self.refused, key=lambda refusal: _ORDER.index(refusal.origin))),
            forbidden=tuple(conflicts(playing, [*(each.conflict for each in self.strategies), *objections])),
            pinned=dict(self.pinned),
            batch_limit=next((offer.batch_limit for _, offer in self._offered if offer.batch_limit), ""),
            strategies=tuple(strategy.to_record(offer) for strategy, offer in self._offered),
        )
        check_size(space)
        _check_pins_together(space)
        pinned = [Refusal(name=name, reason=f"pinned to {value}") for name, value in self.pinned.items()]
        return space.model_copy(update={"refused": (*space.refused, *pinned)})

    def _knobs(self) -> dict[str, Knob]:
        # Not kept: a survey that holds its own method is freed late, and with it the user's objects.
        facts = replace(self.facts, profile=self._profile) if self.facts.profile is None else self.facts
        concerned = (strategy for strategy in self.strategies if facts.ranks > 1 or not strategy.for_ranks)
        self._offered = offered = [(strategy, strategy.offered(facts)) for strategy in concerned]
        self.refused += [refusal for _, offer in offered for refusal in offer.refused]
        return self._with_pins({knob.name: knob for _, offer in offered for knob in offer.knobs})

    def _with_pins(self, knobs: dict[str, Knob]) -> dict[str, Knob]:
        """Leaves pinned knobs their pinned value, and their default, since the baseline is measured for comparison.

        Raises:
            SpaceError: a pinned knob or value is not offered; the message lists those that are.
        """
        if ACCUMULATION_STEPS in self.pinned:
            raise SpaceError(
                f"{ACCUMULATION_STEPS} cannot be pinned: it follows from the global batch and the micro batch. Pin "
                "micro_batch_size, and give the global batch."
            )
        for name in (each for each in self.pinned if each not in knobs):
            reasons = [f" ({each.name}: {each.reason})" for each in self.refused if name.startswith(each.name)]
            playing = "; ".join(f"{k.name}: {_listed(k)}" for k in knobs.values() if k.name != ACCUMULATION_STEPS)
            raise SpaceError(
                f"{name!r} is not a knob in play here{''.join(reasons[:1])}. The knobs in play are {playing}. Pin one "
                "of these."
            )
        for name, value in self.pinned.items():
            if not knobs[name].admits(value):
                reasons = [f": {each.reason}" for each in self.refused if each.name == f"{name}={value}"]
                raise SpaceError(
                    f"{name}={value} cannot be pinned{''.join(reasons[:1])}. Expected one of {_listed(knobs[name])}. "
                    "Pin another value, or none."
                )
            knobs[name] = knobs[name].only((knobs[name].default, value))
        return knobs

    def _profile(self, plan: Plan, blocks: Sequence[nn.Module], marked: Callable[..., bool]) -> Sequence[Span]:
        """Returns what the parts of a forward pass keep and compute. See `autofit.strategies.base.SpanProfile`."""
        return self._in_time(lambda batch: profiled(self.steps, plan, blocks, marked, batch))

    def _in_time(self, look: Callable[[Counted], Sequence[T]]) -> Sequence[T]:
        """Returns what a look at a step found; nothing if it takes too long or the user's code fails, as in a probe."""

        def on(size: int) -> Sequence[T]:
            found = self.source.cuttable(size, 1)[0]
            return look(Counted(found.batch, found.samples))

        with suppress(Exception, Overdue):
            return self.watch.allowed(lambda: self.source.on_small(on), LOOK_S)
        return ()


def uneven_steps(steps: Steps, batch: Counted) -> list[str]:
    """Returns a caveat if two steps do not make the same updates, or leave an optimizer out; else an empty list.

    A probe runs few steps. If a model is trained in every fifth step only, its peak and its time may not be among them.
    """
    steps.restore()
    try:
        with steps.build(Plan()) as step, generators_restored(step.draft.device):
            made = []
            for _ in range(2):
                with updates_noted(step) as found:
                    step(fresh(batch.batch))
                made.append([optimizer for optimizer, _ in found])
            optimizers = () if step.draft.optimizer is None else each_of(step.draft.optimizer)
    finally:
        steps.restore()
    if made[0] == made[1] and all(each in made[0] for each in optimizers):
        return []
    return [
        f"two calls of update_fn made {len(made[0])} and {len(made[1])} updates, with {len(optimizers)} "
        f"optimizer{'s' * (len(optimizers) > 1)}: peak and speed are those of the calls that were run, and others may "
        "need more. Make the same updates in each call"
    ]


def conflicts(knobs: Sequence[Knob], objections: Sequence[Objection]) -> Iterator[Conflict]:
    """Yields the values of knobs that do not go together, those of the first objection first.

    Raises:
        SpaceError: a strategy looks at too many knobs: it would have to be asked about too many plans.
    """
    domains = {knob.name: knob.values for knob in knobs}
    defaults = {knob.name: knob.default for knob in knobs}
    for objection in objections:
        asked, begun = 0, list[dict[str, KnobValue]]([{}])
        while begun:
            decided = begun.pop()
            values = _Recorded({**defaults, **decided})
            reason = objection(Plan.model_construct(values=values))
            asked += 1
            if asked > MOST_ASKED:
                raise SpaceError(
                    f"a strategy decides by the values of {', '.join(values.read)} together whether a plan is allowed, "
                    f"which needs more than {MOST_ASKED:,} questions; search fewer strategies at a time: "
                    "strategies=[...]."
                )
            undecided = next((name for name in values.read if name not in decided), None)
            if undecided is not None:
                begun += [{**decided, undecided: value} for value in reversed(domains[undecided])]
            elif reason:
                yield Conflict(values=decided, reason=reason)


def check_size(facts: SpaceFacts) -> None:
    """Raises a `SpaceError` if there are more than `MAX_PLANS` plans."""
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


def _check_pins_together(facts: SpaceFacts) -> None:
    """Checks that a plan with all pinned values may be run.

    Raises:
        SpaceError: strategies rule out every combination with these values; the message gives the reason of one.
    """
    space = SearchSpace(facts)
    if any(space.unpinned(each) is None and space.conflict(each) is None for each in space.combinations()):
        return
    pins = ", ".join(f"{name}={value}" for name, value in facts.pinned.items())
    pinned = Plan(values=facts.pinned)
    reasons = (one.reason for one in sorted(facts.forbidden, key=lambda one: not one.applies_to(pinned)))
    reason = next(reasons, "no combination has all of them")
    raise SpaceError(f"{pins} cannot be pinned together: {reason}. Pin fewer knobs.")


def _listed(knob: Knob) -> str:
    return ", ".join(map(str, knob.values))
