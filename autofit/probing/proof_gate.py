"""The gate in a proof: a technique that is too expensive to check before the search is checked on the plan that won.

Compiling takes seconds to minutes. A gate before the first probe would compile every value of the knob, also where none
can pay. In a proof, the code is already compiled for the plan's own batch, so the comparison costs two more steps, and
one more compilation if the model behaves differently in evaluation mode (dropout).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autofit.core.budget import GATES_SHARE
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.redaction import redacted
from autofit.probing.compilation import noted
from autofit.probing.survey import gates
from autofit.probing.survey.gradients import Build, State
from autofit.probing.survey.same_arithmetic import same_arithmetic
from autofit.probing.survey.update_gate import same_update
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies.base import Strategy
from autofit.terminal import cut_middle
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted

_WORDS = 200
"""Maximum length of the reason why gradients were not compared."""


@dataclass(frozen=True, slots=True)
class ProofGate:
    """Compares the gradient of a proven plan with that of the same plan without its `gated_in_proof` techniques.

    If the user's `update_fn` does the step, no technique knows its inside, so it is compared without any.

    Attributes:
        strategies: all strategies.
        build: makes a train step.
        source: provides the batch, of the size that the proof ran.
        state: restores what a step changes besides gradients.
        watch: ends the comparison when its share of the time is used up.
    """

    strategies: Sequence[Strategy]
    build: Build
    source: BatchSource
    state: State
    watch: Watchdog

    def judged(self, outcome: Outcome, plan: Plan, baseline: Plan) -> Outcome:
        """Returns the outcome of a proof after its gate. What cannot be compared becomes a note.

        Args:
            outcome: the measured proof.
            plan: the plan that was proven.
            baseline: the user's own plan, whose values need no check.
        """
        whole = self._is_whole(baseline)
        reference = _batch_of(plan) if whole else self._without(plan)
        changed = {name: value for name, value in plan.changes_from(baseline).items() if name not in reference.values}
        if not changed:
            return outcome
        what = str(Plan(values=changed))
        try:
            found = self.watch.allowed(lambda: self._compared(plan, reference, baseline, whole), GATES_SHARE)
        except Overdue as overdue:
            reason = str(overdue)
        except Exception as error:  # noqa: BLE001  # raised by the user's code or the compiler in another mode
            reason = cut_middle(redacted(" ".join(f"{type(error).__name__}: {error}".split())), _WORDS)
        else:
            if found.passed:
                return outcome
            if found.checked:
                refused = f"{what} changes the gradient of this model: {found.reason}"
                return Outcome(status=Status.NUMERIC, reason=refused, phase="proof")
            reason = found.reason
        return noted(outcome, f"{what}: its gradient was not compared with that of the same step without it: {reason}")

    def _is_whole(self, baseline: Plan) -> bool:
        """Returns whether the user's `update_fn` does the step. Any technique may then meet a step that it changes."""
        with self.build(baseline) as step:
            return step.draft.loss.update is not None

    def _without(self, plan: Plan) -> Plan:
        return _less(plan, {name for strategy in self.strategies if strategy.gated_in_proof for name in strategy.owns})

    def _compared(self, plan: Plan, reference: Plan, baseline: Plan, whole: bool) -> gates.GateResult:
        reducing = [strategy for strategy in self.strategies if strategy.gated]
        changed = plan.changes_from(baseline).keys()
        rounded = any(changed & set(strategy.owns) for strategy in reducing)
        coarse = {name for each in reducing if each.effect == "changes the result" for name in each.owns}
        finer = _less(reference, coarse) if coarse & changed else None
        batch = Counted(self.source.typical(plan.micro_batch_size, 1)[0], plan.micro_batch_size)
        if whole:
            return same_update(self.build, plan, reference, batch, self.state, rounded=rounded)
        plain = _less(reference, {name for strategy in reducing for name in strategy.owns})
        return same_arithmetic(
            self.build, plan, reference, batch, self.state, rounded=rounded, finer=finer, plain=plain
        )


def _batch_of(plan: Plan) -> Plan:
    """Returns a plan with the batch of `plan` and no technique."""
    return Plan(values={name: plan.values[name] for name in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)})


def _less(plan: Plan, names: Collection[str]) -> Plan:
    """Returns `plan` without the knobs of these names."""
    return Plan(values={name: value for name, value in plan.values.items() if name not in names})
