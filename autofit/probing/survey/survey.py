"""The survey before a search: which knobs apply to this workload, and which of their values pass the gates."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from torch import nn

from autofit.core.briefing import GateRecord
from autofit.core.budget import GATES_SHARE
from autofit.core.gate_verdict import GateVerdict
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.space import Refusal, SpaceFacts
from autofit.prepare import batches_of
from autofit.probing.survey import gates, pins
from autofit.probing.survey.block_profile import profiled
from autofit.probing.survey.conflicts import check_size, conflicts
from autofit.probing.survey.gate_notes import accumulation_notes, precision_notes
from autofit.probing.survey.output_gate import output
from autofit.probing.survey.padding_gate import padding
from autofit.probing.survey.rounding_gate import rounding
from autofit.probing.survey.update_gate import uneven_steps, update
from autofit.probing.user_errors import named_error
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.probing.workload_facts import baseline_notes
from autofit.strategies.base import Facts, Offer, Span, Strategy, no_profile
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.lengths import elements
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.step import TrainStep
from autofit.workloads.useful_targets import may_differ, unevenness

T = TypeVar("T")

_GATE_SAMPLES = (8, 4, 2)
_MOST_SAMPLES = 64
"""Maximum batch size of a gate. The loader's batch size, up to this, is used if a small batch has no gradient, as when
no pair violates the margin of a hinge loss."""
_PROFILED_SAMPLES = 2
"""Batch size of a profile. Batch normalisation over vectors needs two samples."""
_INSPECTED = 8
"""Number of batches that are inspected. The gates use the one whose samples differ most in length."""
_MOST_ELEMENTS = 2**24
"""Maximum number of elements of a batch whose labels are compared with those of other batches."""
ACCUMULATION = "accumulation"
"""Name of the gate of accumulation. The gate of a knob's value is named after both, such as "precision=bf16"."""
_ORDER = ("gate", "", "device")
"""Origins of refusals in the order in which they are listed: what was found in this model comes first."""


@dataclass(slots=True)
class Survey:
    """Finds the search space of a workload.

    Attributes:
        facts: facts about the workload on its device.
        strategies: the strategies to search. The knobs of all others stay as in the baseline.
        build: makes a train step, for the gates.
        source: provides the gates' batches.
        seed: random seed of the gates.
        state: restores what a step changes besides gradients, for the gates.
        watch: stops gates that exceed their share of the time budget.
        pinned: value by knob; only plans with these values are searched.
        earlier: verdicts of gates that ran in an earlier search of this workload, by technique. These gates do not run.
        refused: what was left out, with the reason. Set by `run`.
        caveats: findings of the gates that the user should know. Set by `run`.
        gate_records: the result of each gate, in the order in which they ran. Set by `run`.
        verdicts: what the gates found, for later searches, by technique. Set by `run`.
        weighing: quantity by which micro batches are weighted; None: their number of samples. Set by `run`.
    """

    facts: Facts
    strategies: Sequence[Strategy]
    build: gates.Build
    source: BatchSource
    seed: int
    state: gates.State = gates.STATELESS
    watch: Watchdog = field(default_factory=Watchdog)
    pinned: Mapping[str, KnobValue] = field(default_factory=dict)
    earlier: Mapping[str, GateVerdict] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    gate_records: list[GateRecord] = field(default_factory=list)
    verdicts: dict[str, GateVerdict] = field(default_factory=dict)
    weighing: Weighing | None = None
    _gates_end_s: float = math.inf
    _offered: Sequence[tuple[Strategy, Offer]] = ()

    def run(self) -> SpaceFacts:
        """Returns the search space.

        Raises:
            SpaceError: no micro batch is usable, or there are too many combinations.
        """
        self._gates_end_s = self.watch.clock.elapsed_s + self.watch.clock.patience_s(GATES_SHARE)
        facts, knobs = self.facts, self._knobs()
        self.caveats += baseline_notes(facts, self.source.user_batch_size)
        self.caveats += self._uneven_steps() if facts.update_fn else ()
        sizes = [facts.micro_batch_size]
        if MICRO_BATCH_SIZE in knobs:
            sizes = [int(size) for size in knobs.pop(MICRO_BATCH_SIZE).values]
        knobs.pop(ACCUMULATION_STEPS, None)
        if facts.training and self._accumulates(sizes) and not self._may_accumulate():
            pins.check_size(self.pinned, facts.micro_batch_size, self.refused[-1].reason)
            sizes = [facts.micro_batch_size]
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
        for strategy, offer in offered:
            for knob in (pins.narrowed(each, self.pinned, self.refused) for each in offer.knobs + offer.constants):
                gated = self._gated(strategy, knob) if strategy.gated else knob
                knobs[knob.name] = pins.narrowed(gated, self.pinned, self.refused)
        return knobs

    def _gated(self, strategy: Strategy, knob: Knob) -> Knob:
        """Returns `knob` without the values that do not keep this model's gradient, or in inference its output."""
        kept = [value for value in knob.values if value == knob.default or self._keeps(strategy, knob.name, value)]
        return knob.only(kept)

    def _keeps(self, strategy: Strategy, name: str, value: KnobValue) -> bool:
        plan, keeps = Plan(values={name: value}), gates.precision if self.facts.training else output
        keeps = update if self.facts.update_fn else keeps
        changed = batches_of(plan, self.source, self.strategies)

        def gate(found: Cuttable) -> gates.GateResult:
            if (batch := strategy.gate_batch(self.facts)) is not None:
                found_against = partial(strategy.objection, self.facts, batch)
                return rounding(self._build, plan, batch, self.seed, self.state, found_against)
            if changed is not self.source:
                return padding(self._build, self.source, changed, found.samples, self.seed, self.state)
            return keeps(self._build, plan, Counted(found.batch, found.samples), self.seed, self.state)

        what = f"{name}={value}"
        verdict = self._verdict(what, gate, loader_batch=True)
        if keeps is gates.precision:
            self.caveats += precision_notes(what, verdict)
        return self._decide(what, verdict)

    def _accumulates(self, sizes: Iterable[int]) -> bool:
        total = self.facts.global_batch_size
        return total is not None and any(total // size != self.facts.accumulation_steps for size in sizes)

    def _may_accumulate(self) -> bool:
        verdict = self._verdict(
            ACCUMULATION, lambda found: gates.accumulation(self._build, found, self.seed, self.state)
        )
        self.weighing = verdict.weighing
        self.caveats += accumulation_notes(verdict, self.facts.accumulation_steps)
        size, steps = self.facts.micro_batch_size, self.facts.accumulation_steps
        kept = f"The baseline's micro batch of {size} and its {steps} accumulation steps are kept" if steps > 1 else ""
        return self._decide(ACCUMULATION, verdict, kept)

    def _decide(self, what: str, verdict: gates.GateResult, kept: str = "") -> bool:
        """Records a verdict and returns whether the technique is in the search; if not, `kept` says what stays."""
        self.gate_records.append(GateRecord(name=what, passed=verdict.passed, reason=verdict.reason))
        if verdict.passed:
            return True
        if self.facts.numerics == "any":
            self.caveats.append(f"{what}: {verdict.reason}; kept, as numerics='any' allows")
            return True
        reason = ". ".join(text for text in (verdict.reason, kept) if text)
        self.refused.append(Refusal(name=what, reason=reason, origin="gate"))
        return False

    def _verdict(
        self, what: str, gate: Callable[[Cuttable], gates.GateResult], *, loader_batch: bool = False
    ) -> gates.GateResult:
        """Returns the verdict on a technique: that of an earlier search, or that of the gate, which runs now."""
        earlier = self.earlier.get(what)
        found = self._asked(gate, loader_batch=loader_batch) if earlier is None else gates.GateResult.of(earlier)
        if found.checked:
            self.verdicts[what] = found.verdict
        return found

    def _asked(self, gate: Callable[[Cuttable], gates.GateResult], *, loader_batch: bool = False) -> gates.GateResult:
        """Returns a gate's verdict on a small batch. A gate that cannot be run is not passed.

        Each attempt may take half of the time that is left for gates, so that a smaller batch can follow a slow one.

        Args:
            gate: the check to run on a batch.
            loader_batch: whether the loader's own batch is used if smaller ones cannot be made or run, such as a batch
                of one graph.
        """
        reason = "the user's batches cannot be cut"
        users, most = self.source.user_batch_size, self.source.max_size or math.inf
        sizes = [size for size in _GATE_SAMPLES if size <= min(max(2, users), most)] if self.source.resizable else []
        for size in [*sizes, *([users] if loader_batch and users not in sizes else [])]:
            try:
                found = self._in_time(gate, size)
                larger = min(users, _MOST_SAMPLES)
                return self._in_time(gate, larger) if found is gates.ZERO and larger > size else found
            except Overdue as overdue:
                reason = f"{overdue}; give more time for this check"
            except Exception as error:  # noqa: BLE001  # raised by the user's code; a probe will report it
                reason = named_error(error)
        return gates.GateResult(False, f"could not be checked: {reason}", checked=False)

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

    def _in_time(self, gate: Callable[[Cuttable], T], size: int) -> T:
        most_s = (self._gates_end_s - self.watch.clock.elapsed_s) / 2
        return self.watch.allowed(lambda: gate(self._batch(size)), most_s=most_s)

    def _build(self, plan: Plan) -> TrainStep:
        self.watch.check()
        return self.build(plan)

    def _batch(self, size: int) -> Cuttable:
        """Returns a batch for a gate: if possible, one whose samples differ in a quantity that a loss averages over."""
        (first,) = self.source.cuttable(size, 1)
        differs = may_differ(first.batch, size) and elements(first.batch) <= _MOST_ELEMENTS
        if not self.source.resizable or not (self.source.varies or differs):
            return first
        return max(self.source.cuttable(size, _INSPECTED), key=self._unevenness)

    def _unevenness(self, found: Cuttable) -> float:
        tokens = [self.source.tokens(part.batch) or 0 for part in found.cut([1] * found.samples)]
        return (max(tokens) - min(tokens)) / max(*tokens, 1) + unevenness(found.batch, found.samples)
