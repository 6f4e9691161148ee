"""The check of a plan: whether it keeps the baseline's gradient, and if not, which of its values is at fault.

All values of a plan are compared at once, since nearly all plans hold. If they do not hold together, halves are
compared until the value at fault is found. Values that need a batch of their own, and other micro batches, are compared
by themselves.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.units import format_names
from autofit.failures.evidence import named_error
from autofit.gates.accumulation import NAMED, accumulation, carried
from autofit.gates.batches import uneven, unevenly_weighted, weighted_mean, with_rare_marks
from autofit.gates.compare import ZERO
from autofit.gates.gradients import BASELINE, Steps
from autofit.gates.technique import output, technique, update
from autofit.gates.verdict import (
    ACCUMULATION,
    OTHER_BATCH,
    Checked,
    GateVerdict,
    at_fault,
    failed,
    together,
    unchecked,
    values_to_check,
)
from autofit.prepare import batches_of
from autofit.strategies.base import Facts, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.micro_batch_weights import SUM, Weighing

_SAMPLES = (8, 4, 2)
_MOST_SAMPLES = 64
"""Maximum batch size of a gate. The loader's batch size, up to this, is used if a small batch has no gradient, as when
no pair violates the margin of a hinge loss."""

_LIKE_A_SUM = (
    "the loss looks like a sum over samples, but so does a sum divided by the number of samples with {}, of which no "
    "batch that was read has two. Average over samples, or keep the micro batch"
)


class _NotCompared(Exception):
    """Values that must be compared could not be: their names, and why."""


@dataclass(slots=True)
class GradientCheck:
    """The check of one plan. `run` it, then ask for the `result`.

    Attributes:
        strategies: all strategies.
        put_back: restores everything and frees memory, after a comparison that failed with an error.
        baseline: the plan whose gradient `plan` must keep.
        known: the verdicts of earlier checks, by value.
        found: the new verdicts.
        unchecked: why a value that must be compared has no verdict; "" if there is none.
        undecided: the values that the comparison decided nothing on, although there was time.
    """

    facts: Facts
    strategies: Sequence[Strategy]
    steps: Steps
    source: BatchSource
    put_back: Callable[[], None]
    plan: Plan
    baseline: Plan
    known: Mapping[str, GateVerdict]
    found: dict[str, GateVerdict] = field(default_factory=dict)
    unchecked: str = ""
    undecided: tuple[Refusal, ...] = ()

    def run(self) -> None:
        """Finds the verdicts that are not known."""
        try:
            for stage in (self._with_special_batches, self._all_together, self._batch):
                if self._fault() and not self._any:
                    return
                stage()
        except _NotCompared as error:
            values, reason = error.args
            self.unchecked = f"{', '.join(values)} {reason}"
            self.undecided = tuple(Refusal(name=value, reason=reason, origin="gate") for value in values)

    def result(self) -> Checked:
        """Returns the result of what was found so far, as `autofit.search.request.Bench.check` says."""
        fault, verdicts = self._fault(), {**self.known, **self.found}
        if fault and not self._any:
            found = {name: each for name, each in verdicts.items() if at_fault(self._values, {name: each})}
            refused = tuple(Refusal(name=name, reason=each.reason, origin="gate") for name, each in found.items())
            reason = f"{fault}: {verdicts[fault].reason}"
            return Checked(passed=False, reason=reason, verdicts=self.found, refused=refused)
        if self.unchecked:
            why, values = self.unchecked, self.undecided
            return Checked(passed=False, checked=False, reason=why, verdicts=self.found, refused=values)
        decided = {value: verdicts[value] for value in [*self._values, fault] if value in verdicts}
        return Checked(verdicts=self.found, caveats=tuple(notes(decided, self.baseline.accumulation_steps)))

    @property
    def _any(self) -> bool:
        return self.facts.numerics == "any"

    @property
    def _values(self) -> list[str]:
        return values_to_check(self.plan, self.baseline, free=self.facts.global_batch_size is None)

    def _fault(self) -> str:
        return at_fault(self._values, {**self.known, **self.found})

    def _unknown(self, values: Iterable[str]) -> list[str]:
        return [value for value in values if value not in self.known and value not in self.found]

    @property
    def _techniques(self) -> dict[str, Strategy]:
        """The strategy of each value that differs from the baseline."""
        owners = {name: strategy for strategy in self.strategies for name in strategy.owns}
        changed = self.plan.combination.changes_from(self.baseline)
        return {f"{name}={value}": owners[name] for name, value in changed.items()}

    def _with_special_batches(self) -> None:
        for value, strategy in self._techniques.items():
            if _has_special_batch(strategy) and self._unknown([value]):
                gate = partial(self._on_special_batch, strategy, self._only([value]))
                self._decide([value], self._tried(gate, self._sizes(loaders=True)))

    def _on_special_batch(self, strategy: Strategy, plan: Plan, batch: Cuttable) -> GateVerdict:
        changed = batches_of(plan, self.source, self.strategies)
        if (special := strategy.gate_batch(self.facts)) is not None:
            try:
                objection = strategy.objection(self.facts, special)
            finally:
                self.steps.restore()
            return failed(objection) if objection else technique(self.steps, plan, special, strict=True)
        if changed is self.source:
            return technique(self.steps, plan, Counted(batch.batch, batch.samples), rounded=self._rounds(plan))
        return unchecked("it changes the batches, and names none on which its gradient can be compared")

    def _all_together(self) -> None:
        """Compares the whole plan with the baseline; looks for the value at fault if it does not hold."""
        techniques = self._techniques
        values = self._unknown(value for value in techniques if not _has_special_batch(techniques[value]))
        if not values:
            return
        late = [value for value in values if techniques[value].gated_in_proof]
        found = self._of(self.plan, as_typical=bool(late))
        if found.passed or (found is ZERO and not late):
            self._decide(values, found)
            return
        self._halve([value for value in values if value not in late])
        if late and (self._any or not self._fault()):
            names = {name for value in late for name in techniques[value].owns}
            without = Plan(values={name: value for name, value in self.plan.values.items() if name not in names})
            self._decide(late, self._of(self.plan, without, as_typical=True))
        if found.compared and not self._fault():
            self.found[together(techniques)] = found

    def _halve(self, values: Sequence[str]) -> None:
        """Finds verdicts on values that could not be compared at once, or of which one is at fault."""
        if not values:
            return
        found = self._of(self._only(values))
        if found.passed or len(values) == 1:
            self._decide(values, found)
            return
        middle = len(values) // 2
        self._halve(values[:middle])
        self._halve(values[middle:])
        if found.compared and not at_fault(values, self.found):
            self.found[together(values)] = found

    def _decide(self, values: Sequence[str], found: GateVerdict) -> None:
        """Records a verdict on values that were compared at once.

        A technique that keeps the arithmetic passes if nothing could be compared, with a note.

        Raises:
            _NotCompared: one that does not was not compared.
        """
        if not found.compared:
            needed = {ACCUMULATION, *(value for value, strategy in self._techniques.items() if strategy.gated)}
            if must := [value for value in values if value in needed]:
                raise _NotCompared(must, found.reason)
        passed = found.passed or not found.compared
        self.found |= dict.fromkeys(values, found.model_copy(update={"passed": passed}))

    def _only(self, values: Collection[str]) -> Plan:
        """Returns a plan with these values alone."""
        changed = self.plan.combination.changes_from(self.baseline)
        return Plan(values={name: value for name, value in changed.items() if f"{name}={value}" in values})

    def _rounds(self, plan: Plan) -> bool:
        """Returns whether a plan computes in another precision than the baseline."""
        changed = plan.changes_from(self.baseline)
        rounding = (each for each in self.strategies if each.gated and not _has_special_batch(each))
        return any(changed.keys() & set(each.owns) for each in rounding)

    def _of(self, plan: Plan, reference: Plan = BASELINE, *, as_typical: bool = False) -> GateVerdict:
        """Returns the verdict on a plan; `as_typical` on the plan's micro batch, for which code may be compiled."""
        sizes, rounded = self._sizes(loaders=True), self._rounds(plan)

        def gate(found: Cuttable) -> GateVerdict:
            batch = Counted(found.batch, found.samples)
            if not (self.facts.training or self.facts.update_fn):
                return output(self.steps, plan, batch, reference)
            compared = update if self.facts.update_fn else technique
            return compared(self.steps, plan, batch, reference=reference, rounded=rounded)

        return self._tried(gate, [plan.micro_batch_size] if as_typical else sizes, as_typical=as_typical)

    def _batch(self) -> None:
        """Checks another batch size: accumulation, or a batch whose size is free."""
        values = self._unknown(value for value in self._values if value in (ACCUMULATION, OTHER_BATCH))
        if values and self.facts.training and not self.facts.update_fn:
            self._decide(values, self._tried(self._on_parts, self._sizes()))

    def _on_parts(self, batch: Cuttable) -> GateVerdict:
        whole, half = Counted(batch.batch, batch.samples), batch.samples // 2
        found = carried(self.steps, whole, batch.cut([half, batch.samples - half])[0])
        if not found.passed or ACCUMULATION not in self._values:
            return found
        batches, hidden = self._telling(batch)
        if not batches:
            return unchecked("the loss weights classes, and the samples that were read are all of one")
        found = accumulation(self.steps, batches)
        if found.passed and (joined := self.source.joined(batch.samples)):
            together = accumulation(self.steps, joined)
            if not together.passed:
                reason = f"batches that join samples of two of your loader's are not like each alone: {together.reason}"
                found = together.model_copy(update={"reason": reason})
        if hidden and found.weighing == str(SUM):
            return unchecked(_LIKE_A_SUM.format(hidden))
        size, steps = self.baseline.micro_batch_size, self.baseline.accumulation_steps
        if found.passed or steps == 1:
            return found
        kept = f"The baseline's micro batch of {size} and its {steps} accumulation steps are kept"
        return found.model_copy(update={"reason": f"{found.reason}. {kept}"})

    def _telling(self, batch: Cuttable) -> tuple[list[Cuttable], str]:
        """Returns batches that show what the loss is a mean over, none if no batch does; see `with_rare_marks`."""
        mean = weighted_mean(self.steps, Counted(batch.batch, batch.samples))
        if mean is None:
            return with_rare_marks(self.source, batch)
        batches = unevenly_weighted(self.source, batch.samples, mean) or [batch]
        shown = mean.shown or mean.unevenness(batches[0].batch, batches[0].samples) > 0
        return batches if shown or not mean.by_class else [], ""

    def _sizes(self, *, loaders: bool = False) -> list[int]:
        """Returns batch sizes to try. With `loaders`, the loader's own is among them, such as a batch of one graph."""
        users, most = self.source.user_batch_size, self.source.max_size or math.inf
        sizes = [size for size in _SAMPLES if size <= min(max(2, users), most)] if self.source.resizable else []
        return [*sizes, *([users] if loaders and users not in sizes else [])]

    def _tried(
        self, gate: Callable[[Cuttable], GateVerdict], sizes: Sequence[int], *, as_typical: bool = False
    ) -> GateVerdict:
        """Returns a gate's result on a batch of the first of several sizes with which it runs.

        With `as_typical`, the batch is the first that the loader gives, for which code may be compiled already.
        """
        reason = "the user's batches cannot be cut"
        for size in sizes:
            try:
                if as_typical:
                    return gate(self.source.cuttable(size, 1)[0])
                found = gate(uneven(self.source, size))
                larger = min(self.source.user_batch_size, _MOST_SAMPLES)
                return gate(uneven(self.source, larger)) if found is ZERO and larger > size else found
            except Exception as error:  # noqa: BLE001  # raised by the user's code; a probe will report it
                reason = named_error(error)
            self.put_back()
        return unchecked(reason)


def _has_special_batch(strategy: Strategy) -> bool:
    """Returns whether a strategy that must be checked changes what a batch of its own shows alone."""
    kind = type(strategy)
    return strategy.gated and (kind.gate_batch is not Strategy.gate_batch or kind.batches is not Strategy.batches)


def notes(verdicts: Mapping[str, GateVerdict], baseline_steps: int) -> Iterator[str]:
    """Yields the caveats that follow from the verdicts on the values of a plan that its check has admitted.

    A verdict that failed is allowed by numerics='any'.
    """
    for verdict in dict.fromkeys(verdicts.values()):
        names = ", ".join(value for value, each in verdicts.items() if each == verdict)
        if not verdict.passed:
            yield f"{names}: {verdict.reason}; kept, as numerics='any' allows"
        elif not verdict.compared:
            yield f"{names}: the gradient was not compared with that of the baseline: {verdict.reason}"
        elif verdict.evaluated and names != ACCUMULATION:
            yield f"{names}: {verdict.reason}. Compare the first losses of a training with those in float32"
    if ACCUMULATION in verdicts:
        yield from _accumulation_notes(verdicts[ACCUMULATION], baseline_steps)


def _accumulation_notes(verdict: GateVerdict, baseline_steps: int) -> Iterator[str]:
    if (weighing := Weighing.parse(verdict.weighing)) is not None:
        baseline = f", and so are the {baseline_steps} micro batches of the baseline" if baseline_steps > 1 else ""
        found = f"a mean over {weighing}: micro batches are weighted by it"
        if weighing.summed:
            found = "a sum over samples, so that its gradient grows with the batch: micro batches are added up"
        yield (
            f"the loss is {found}{baseline}, so that the step equals that of the whole batch. A loop that weights them "
            "in another way has a different gradient"
        )
    if verdict.moves:
        yield (
            f"the step changes {format_names(verdict.moves, NAMED)} by itself, once for each micro batch: with "
            "accumulation, several times per optimizer step. If that matters (a moving average), change it after the "
            "optimizer's step instead"
        )
    if verdict.passed and verdict.evaluated:
        yield (
            "accumulation was checked in evaluation mode, because in training the step draws random numbers that a "
            "batch and its micro batches cannot share: behaviour that is specific to training was not compared. If "
            "samples of a batch interact in training (custom batch normalisation, a balance term), keep the micro "
            "batches of the baseline"
        )
