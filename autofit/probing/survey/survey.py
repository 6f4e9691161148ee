"""The survey before a search: which knobs apply to this workload."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import nn

from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.space import Refusal, SpaceFacts
from autofit.probing.survey import pins
from autofit.probing.survey.block_profile import profiled
from autofit.probing.survey.conflicts import check_size, conflicts
from autofit.probing.survey.gradients import STATELESS, Build, State
from autofit.probing.survey.update_gate import uneven_steps
from autofit.probing.watchdog import Watchdog
from autofit.probing.workload_facts import baseline_notes
from autofit.strategies.base import Facts, Offer, Span, Strategy, no_profile
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.step import TrainStep

T = TypeVar("T")

_PROFILED_SAMPLES = 2
"""Batch size of a profile. Batch normalisation over vectors needs two samples."""
_ORDER = ("", "device")
"""Origins of refusals in the order in which they are listed: what was found in this model comes first."""


LOOK_S = 10.0
"""Maximum number of seconds of one look at a step. A look takes milliseconds, or a second on a slow model."""


@dataclass(slots=True)
class Survey:
    """Finds the search space of a workload.

    Attributes:
        facts: facts about the workload on its device.
        strategies: the strategies to search. The knobs of all others stay as in the baseline.
        build: makes a train step, for looks at the model's blocks and at `update_fn`.
        source: provides the batches.
        seed: random seed of these steps.
        state: restores what a step changes besides gradients.
        watch: stops looks that take too long.
        pinned: value by knob; only plans with these values are searched.
        refused: what was left out, with the reason. Set by `run`.
        caveats: what the user should know of the baseline. Set by `run`.
    """

    facts: Facts
    strategies: Sequence[Strategy]
    build: Build
    source: BatchSource
    seed: int
    state: State = STATELESS
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
        self.caveats += self._uneven_steps() if facts.update_fn else ()
        sizes = [facts.micro_batch_size]
        if MICRO_BATCH_SIZE in knobs:
            sizes = [int(size) for size in knobs.pop(MICRO_BATCH_SIZE).values]
        knobs.pop(ACCUMULATION_STEPS, None)
        constants = {knob.name for _, offer in self._offered for knob in offer.constants}
        playing = tuple(knob for knob in knobs.values() if len(knob.values) > 1 or knob.name in constants)
        defaults: dict[str, KnobValue] = {knob.name: knob.default for knob in playing}
        batch: dict[str, KnobValue] = {
            MICRO_BATCH_SIZE: facts.micro_batch_size,
            ACCUMULATION_STEPS: facts.accumulation_steps,
        }
        space = SpaceFacts(
            knobs=playing,
            sizes=tuple(sorted({*sizes, facts.micro_batch_size})),
            global_batch_size=facts.global_batch_size,
            baseline=Plan(values={**batch, **defaults}),
            refused=tuple(sorted(self.refused, key=lambda refusal: _ORDER.index(refusal.origin))),
            forbidden=tuple(conflicts(playing, [strategy.conflict for strategy in self.strategies])),
            pinned=dict(self.pinned),
            batch_limit=next((offer.batch_limit for _, offer in self._offered if offer.batch_limit), ""),
            strategies=tuple(strategy.to_record(offer) for strategy, offer in self._offered),
        )
        check_size(space)
        pins.check_conflict(space)
        return space.model_copy(update={"refused": (*space.refused, *pins.notes(space))})

    def _knobs(self) -> dict[str, Knob]:
        knobs: dict[str, Knob] = {}
        # Not kept: a survey that holds its own method is freed late, and with it the user's objects.
        facts = replace(self.facts, profile=self._profile) if self.facts.profile is no_profile else self.facts
        self._offered = offered = [(strategy, strategy.offered(facts)) for strategy in self.strategies]
        self.refused += [refusal for _, offer in offered for refusal in offer.refused]
        every = {knob.name: knob for _, offer in offered for knob in (*offer.knobs, *offer.constants)}
        pins.check_names(self.pinned, every, self.refused)
        for _, offer in offered:
            for knob in offer.knobs + offer.constants:
                knobs[knob.name] = pins.narrowed(knob, self.pinned, self.refused)
        return knobs

    def _profile(self, plan: Plan, blocks: Sequence[nn.Module], marked: Callable[..., bool]) -> Sequence[Span]:
        """Returns what the parts of a forward pass keep and compute. See `autofit.strategies.base.SpanProfile`."""

        def seen(found: Cuttable) -> Sequence[Span]:
            return profiled(
                self._build, plan, blocks, marked, Counted(found.batch, found.samples), self.seed, self.state
            )

        with suppress(Exception):  # raised by the user's code; a probe will report it
            return self._in_time(seen, self._small_size)
        return ()

    @property
    def _small_size(self) -> int:
        users, most = self.source.user_batch_size, self.source.max_size or math.inf
        return int(min(_PROFILED_SAMPLES, users, most)) if self.source.resizable else users

    def _uneven_steps(self) -> Sequence[str]:
        """Returns a caveat if the user's step does not do the same updates in each call."""

        def seen(found: Cuttable) -> Sequence[str]:
            return uneven_steps(self._build, Counted(found.batch, found.samples), self.state)

        with suppress(Exception):  # raised by the user's code; a probe will report it
            return self._in_time(seen, self._small_size)
        return ()

    def _in_time(self, look: Callable[[Cuttable], T], size: int) -> T:
        return self.watch.allowed(lambda: look(self.source.cuttable(size, 1)[0]), LOOK_S)

    def _build(self, plan: Plan) -> TrainStep:
        self.watch.check()
        return self.build(plan)
