"""The check of a plan: whether it keeps the baseline's gradient, and if not, which of its values is at fault.

All values of a plan are compared at once, since nearly all plans hold. If they do not hold together, halves are
compared until the value at fault is found. Values that need a batch of their own, and other micro batches, are compared
by themselves.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from autofit.core.gate_verdict import (
    ACCUMULATION,
    OTHER_BATCH,
    Checked,
    GateVerdict,
    at_fault,
    together,
    values_to_check,
)
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.prepare import batches_of
from autofit.probing.survey import gates
from autofit.probing.survey.accumulation_gate import accumulation
from autofit.probing.survey.carried_state import carried
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_notes import notes
from autofit.probing.survey.gate_result import ZERO, GateResult
from autofit.probing.survey.gradients import Build, State
from autofit.probing.survey.output_gate import output
from autofit.probing.survey.padding_gate import padded
from autofit.probing.survey.uneven_batches import uneven, unevenly_weighted
from autofit.probing.survey.update_gate import update
from autofit.probing.survey.weighted_means import weighted_mean
from autofit.probing.user_errors import named_error
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies.base import Facts, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.step import TrainStep

_SAMPLES = (8, 4, 2)
_MOST_SAMPLES = 64
"""Maximum batch size of a gate. The loader's batch size, up to this, is used if a small batch has no gradient, as when
no pair violates the margin of a hinge loss."""


class _Unchecked(Exception):
    """A value that must be compared could not be."""


@dataclass(slots=True)
class GradientCheck:
    """Checks plans of one workload.

    Attributes:
        facts: facts about the workload on its device.
        strategies: all strategies.
        build: makes a train step.
        source: provides the batches.
        seed: seed of the random numbers.
        state: restores what a step changes besides gradients.
        watch: stops a check when the time is used up.
        put_back: restores everything and frees memory, after a comparison that failed with an error.
    """

    facts: Facts
    strategies: Sequence[Strategy]
    build: Build
    source: BatchSource
    seed: int
    state: State
    watch: Watchdog
    put_back: Callable[[], None]

    def run(self, plan: Plan, baseline: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns whether a plan keeps the gradient of the baseline, as `autofit.search.bench.Bench.check` says."""
        values = values_to_check(plan, baseline, free=self.facts.global_batch_size is None)
        check = _Check(self, plan, baseline, values, dict(known))
        reason = ""
        try:
            self.watch.allowed(check.run)
        except Overdue as overdue:
            reason = f"{overdue}; give more time for this check"
        except _Unchecked as unchecked:
            reason = str(unchecked)
        return check.result(reason)


@dataclass(slots=True)
class _Check:
    """The check of one plan. `found` are the new verdicts by value."""

    owner: GradientCheck
    plan: Plan
    baseline: Plan
    values: Sequence[str]
    known: dict[str, GateVerdict]
    found: dict[str, GateVerdict] = field(default_factory=dict)

    def run(self) -> None:
        """Finds the verdicts that are not known.

        Raises:
            _Unchecked: a value could not be checked.
        """
        for stage in (self._with_special_batches, self._all_together, self._batch):
            if self._fault() and not self._any:
                return
            stage()

    def result(self, unchecked: str) -> Checked:
        """Returns the result; `unchecked` is why a value has no verdict, or ""."""
        fault, verdicts = self._fault(), self.known | self.found
        if fault and not self._any:
            reason = f"{fault}: {verdicts[fault].reason}"
            return Checked(passed=False, reason=reason, verdicts=self.found, refused=tuple(self._refused()))
        if unchecked:
            return Checked(passed=False, checked=False, reason=unchecked, verdicts=self.found)
        decided = {value: verdicts[value] for value in self.values if value in verdicts}
        if fault and fault not in decided:
            decided[fault] = verdicts[fault]
        return Checked(verdicts=self.found, caveats=tuple(notes(decided, self.baseline.accumulation_steps)))

    def _refused(self) -> Iterator[Refusal]:
        for name, verdict in (self.known | self.found).items():
            if not verdict.passed and at_fault(self.values, {name: verdict}):
                yield Refusal(name=name, reason=verdict.reason, origin="gate")

    @property
    def _any(self) -> bool:
        return self.owner.facts.numerics == "any"

    def _fault(self) -> str:
        return at_fault(self.values, self.known | self.found)

    def _unknown(self, values: Sequence[str]) -> list[str]:
        return [value for value in values if value not in self.known and value not in self.found]

    @property
    def _techniques(self) -> dict[str, Strategy]:
        """The strategy of each value that differs from the baseline."""
        owners = {name: strategy for strategy in self.owner.strategies for name in strategy.owns}
        changed = self.plan.combination.changes_from(self.baseline)
        return {f"{name}={value}": owners[name] for name, value in changed.items()}

    def _with_special_batches(self) -> None:
        for value, strategy in self._techniques.items():
            if _has_special_batch(strategy) and self._unknown([value]):
                gate = partial(self._on_special_batch, strategy, self._only([value]))
                self._decide([value], self._tried(gate, self._sizes(loaders=True)))

    def _on_special_batch(self, strategy: Strategy, plan: Plan, batches: Sequence[Cuttable]) -> GateResult:
        owner = self.owner
        changed = batches_of(plan, owner.source, owner.strategies)
        if (batch := strategy.gate_batch(owner.facts)) is not None:
            try:
                objection = strategy.objection(owner.facts, batch)
            finally:
                owner.state.restore()
            if objection:
                return GateResult(False, objection)
            compared = Compared(plan, strict=True)
        elif changed is not owner.source:
            size = batches[0].samples
            if isinstance(found := padded(owner.source, changed, size), GateResult):
                return found
            batch, compared = Counted(found[1], size), Compared(Plan(), strict=True, before=Counted(found[0], size))
        else:
            batch, compared = Counted(batches[0].batch, batches[0].samples), self._compared(plan)
        return gates.compare(self._build, compared, batch, owner.seed, owner.state)

    def _all_together(self) -> None:
        """Compares the whole plan with the baseline; looks for the value at fault if it does not hold."""
        techniques = self._techniques
        values = self._unknown([value for value in techniques if not _has_special_batch(techniques[value])])
        if not values:
            return
        late = [value for value in values if techniques[value].gated_in_proof]
        sizes = [self.plan.micro_batch_size] if late else self._sizes(loaders=True)
        found = self._tried(partial(self._compare, self._compared(self.plan)), sizes, as_typical=bool(late))
        if found.passed or (found is ZERO and not late):
            self._decide(values, found)
            return
        self._search(values, late)
        if found.checked and not self._fault():
            self.found[together(techniques)] = found.verdict

    def _search(self, values: Sequence[str], late: Sequence[str]) -> None:
        """Finds verdicts on values that could not be compared at once, or of which one is at fault."""
        self._halve([value for value in values if value not in late])
        if late and (self._any or not self._fault()):
            found = self._tried(partial(self._compare, self._without(late)), [self.plan.micro_batch_size], True)
            self._decide(late, found)

    def _halve(self, values: Sequence[str]) -> None:
        if not values:
            return
        compared = self._compared(self._only(values))
        found = self._tried(partial(self._compare, compared), self._sizes(loaders=True))
        if found.passed or len(values) == 1:
            self._decide(values, found)
            return
        middle = len(values) // 2
        self._halve(values[:middle])
        self._halve(values[middle:])
        if found.checked and not at_fault(values, self.found):
            self.found[together(values)] = found.verdict

    def _decide(self, values: Sequence[str], found: GateResult) -> None:
        """Records a verdict on values that were compared at once.

        A technique that keeps the arithmetic passes if nothing could be compared, with a note.

        Raises:
            _Unchecked: one that does not was not compared.
        """
        if not found.checked:
            needed = {ACCUMULATION, *(value for value, strategy in self._techniques.items() if strategy.gated)}
            must = [value for value in values if value in needed]
            if must:
                raise _Unchecked(f"{', '.join(must)} {found.reason}")
        passed = found.passed or not found.checked
        verdict = found.verdict.model_copy(update={"passed": passed, "compared": found.checked})
        self.found |= dict.fromkeys(values, verdict)

    def _only(self, values: Collection[str]) -> Plan:
        """Returns a plan with these values alone."""
        changed = self.plan.combination.changes_from(self.baseline)
        return Plan(values={name: value for name, value in changed.items() if f"{name}={value}" in values})

    def _less(self, plan: Plan, strategies: Collection[Strategy]) -> Plan:
        names = {name for strategy in strategies for name in strategy.owns}
        return Plan(values={name: value for name, value in plan.values.items() if name not in names})

    def _compared(self, plan: Plan) -> Compared:
        """Returns the comparison of a plan with the baseline."""
        changed = plan.changes_from(self.baseline)
        rounds = any(_rounds(strategy) and changed.keys() & set(strategy.owns) for strategy in self.owner.strategies)
        return Compared(plan, rounded=rounds)

    def _without(self, values: Collection[str]) -> Compared:
        """Returns the comparison of the plan with the same plan without these values."""
        techniques, plan = self._techniques, self.plan
        reference = self._less(plan, [techniques[value] for value in values])
        rounding = [strategy for strategy in self.owner.strategies if _rounds(strategy)]
        coarse = self._less(reference, [each for each in rounding if each.effect == "changes the result"])
        return Compared(
            plan,
            reference,
            plain=self._less(reference, rounding),
            rounded=self._compared(plan).rounded,
            finer=None if coarse == reference else coarse,
        )

    def _compare(self, compared: Compared, batches: Sequence[Cuttable]) -> GateResult:
        owner, batch = self.owner, Counted(batches[0].batch, batches[0].samples)
        if owner.facts.update_fn:
            return update(self._build, compared, batch, owner.seed, owner.state)
        if not owner.facts.training:
            return output(self._build, compared, batch, owner.seed, owner.state)
        return gates.compare(self._build, compared, batch, owner.seed, owner.state)

    def _batch(self) -> None:
        """Checks another batch size: accumulation, or a batch whose size is free."""
        values = self._unknown([value for value in self.values if value in (ACCUMULATION, OTHER_BATCH)])
        if values and self.owner.facts.training and not self.owner.facts.update_fn:
            gate = self._accumulated if ACCUMULATION in values else self._carried
            self._decide(values, self._tried(gate, self._sizes()))

    def _carried(self, batches: Sequence[Cuttable]) -> GateResult:
        (batch,) = batches
        smaller = batch.cut([batch.samples // 2, batch.samples - batch.samples // 2])[0]
        whole = Counted(batch.batch, batch.samples)
        return carried(self._build, whole, smaller, self.owner.seed, self.owner.state)

    def _accumulated(self, batches: Sequence[Cuttable]) -> GateResult:
        owner, (batch,) = self.owner, batches
        if not (found := self._carried(batches)).passed:
            return found
        mean = weighted_mean(self._build, Counted(batch.batch, batch.samples), owner.state)
        if mean is not None:
            batches = unevenly_weighted(owner.source, batch.samples, mean) or batches
            if mean.by_class and not mean.unevenness(batches[0].batch, batches[0].samples):
                reason = "could not be checked: the loss weights classes, and the samples that were read are all of one"
                return GateResult(False, reason, checked=False)
        found = accumulation(self._build, batches, owner.seed, owner.state)
        if found.passed or self.baseline.accumulation_steps == 1:
            return found
        size, steps = self.baseline.micro_batch_size, self.baseline.accumulation_steps
        kept = f"The baseline's micro batch of {size} and its {steps} accumulation steps are kept"
        return GateResult(False, f"{found.reason}. {kept}", moves=found.moves, checked=found.checked)

    def _build(self, plan: Plan) -> TrainStep:
        self.owner.watch.check()
        return self.owner.build(plan)

    def _sizes(self, *, loaders: bool = False) -> list[int]:
        """Returns batch sizes to try. With `loaders`, the loader's own is among them, such as a batch of one graph."""
        source = self.owner.source
        users, most = source.user_batch_size, source.max_size or math.inf
        sizes = [size for size in _SAMPLES if size <= min(max(2, users), most)] if source.resizable else []
        return [*sizes, *([users] if loaders and users not in sizes else [])]

    def _tried(
        self, gate: Callable[[Sequence[Cuttable]], GateResult], sizes: Sequence[int], as_typical: bool = False
    ) -> GateResult:
        """Returns a gate's result on a batch of the first size with which it runs.

        Args:
            gate: the comparison.
            sizes: batch sizes to try, in order.
            as_typical: whether the batch is the first that the loader gives, for which code may be compiled already.
        """
        reason, source = "the user's batches cannot be cut", self.owner.source
        for size in sizes:
            try:
                if as_typical:
                    return gate(source.cuttable(size, 1))
                found = gate(uneven(source, size))
                larger = min(source.user_batch_size, _MOST_SAMPLES)
                return gate(uneven(source, larger)) if found is ZERO and larger > size else found
            except Exception as error:  # noqa: BLE001  # raised by the user's code; a probe will report it
                reason = named_error(error)
            self.owner.put_back()
        return GateResult(False, f"could not be checked: {reason}", checked=False)


def _has_special_batch(strategy: Strategy) -> bool:
    """Returns whether a strategy that must be checked changes what a batch of its own shows alone."""
    kind = type(strategy)
    return strategy.gated and (kind.gate_batch is not Strategy.gate_batch or kind.batches is not Strategy.batches)


def _rounds(strategy: Strategy) -> bool:
    """Returns whether a strategy computes in reduced precision."""
    return strategy.gated and not _has_special_batch(strategy)
