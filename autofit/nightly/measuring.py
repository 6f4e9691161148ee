"""Measuring a plan in a night: runs that are repeated if they say nothing, interleaved blocks, and the re-check."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autofit.core.answer import Ratio
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent, NonFiniteLoss, UserCodeError
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import OPEN, Purpose
from autofit.core.units import format_duration
from autofit.core.wording import describe_plan
from autofit.nightly.records import Figures, Verdict, VerdictKind
from autofit.nightly.verdict import rate_text
from autofit.search.ledger import BLOCK_STEPS, PROOF_STEPS, RUNAWAY_RATIO, RUNAWAY_S
from autofit.search.no_answer import for_good
from autofit.search.race import Pairing, pair
from autofit.search.request import Bench
from autofit.search.trial_runner import doubted
from autofit.study.stored_trials import completed

ROUNDS = 3
"""Number of rounds of blocks in a re-check. With the proof and the probe of the baseline, a re-check takes 8 runs."""
LIMIT_RATIO = 0.95
"""A time-out after at least this share of the time left is blamed on the time budget, not on the plan."""


@dataclass(slots=True)
class Rounds:
    """Blocks of several plans that ran next to each other, by the key of the plan.

    `done` rounds are complete. `early` says whether the time budget ended them.
    """

    rates_per_s: dict[str, list[float]]
    failed: dict[str, Outcome] = field(default_factory=dict)
    done: int = 0
    early: bool = False

    def of(self, plan: Plan) -> tuple[float, ...]:
        """Returns the throughput of a plan in each complete round; () if one of its blocks failed."""
        return () if plan.key in self.failed else tuple(self.rates_per_s[plan.key][: self.done])

    def pairing(self, ours: Plan, theirs: Plan) -> Pairing | None:
        """Returns the comparison of two plans; None if one of them failed, or after fewer than two rounds."""
        logs = [[math.log(rate) for rate in self.of(plan)] for plan in (ours, theirs)]
        return pair(*logs) if min(map(len, logs)) >= 2 else None


class PlanRunner:
    """Runs plans of one job on its bench, whose time left is that of `clock`.

    Attributes:
        runs: number of plans that were run.
        cut_off: plan, purpose and duration in seconds of the run that the time budget cut off; None if it cut off none.
    """

    cut_off: tuple[Plan, Purpose, float] | None = None

    def __init__(
        self, bench: Bench, objective: Objective, clock: Clock, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.bench, self.objective, self.clock, self.say = bench, objective, clock, say
        self.runs, self._forward = 0, True

    @property
    def baseline(self) -> Plan:
        """The baseline of the workload."""
        return self.bench.briefing.space.baseline

    def run(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan. Repeats the run once if it was inconclusive or ambiguous, in doubt, or left the device poisoned.

        Raises:
            BudgetSpent: the time budget cut the run off.
            DevicePoisoned: the device does not respond, also in a fresh process.
            KeyboardInterrupt: the user stopped the run.
        """
        outcome = self._once(plan, purpose)
        status = doubted((), plan, outcome, self.bench.briefing.budget.memory_bytes).status
        if status.inconclusive or status in (Status.AMBIGUOUS, Status.POISONED):
            outcome = self._once(plan, purpose)
        if outcome.status is Status.POISONED:
            raise for_good(outcome.reason)
        return outcome

    def rounds(
        self, plans: Sequence[Plan], count: int, enough: Callable[[Rounds], bool] = lambda so_far: False
    ) -> Rounds:
        """Runs rounds of one block of each plan, forward and backward in turn, so that drift cancels.

        A plan whose block fails does not run again. If the time budget ends a round, the rounds before it count.
        `enough` is called before each round.

        Raises:
            BudgetSpent: no round was complete.
            DevicePoisoned, KeyboardInterrupt: as in `run`.
        """
        rounds = Rounds({plan.key: [] for plan in plans})
        while rounds.done < count and len(rounds.failed) < len(plans) and not enough(rounds):
            order, self._forward = plans if self._forward else plans[::-1], not self._forward
            try:
                for plan in [each for each in order if each.key not in rounds.failed]:
                    outcome = self.run(plan, Purpose.BLOCK)
                    if outcome.measured:
                        rounds.rates_per_s[plan.key].append(self.objective.score(measurement_of(outcome)))
                    else:
                        rounds.failed[plan.key] = outcome
            except BudgetSpent:
                if not rounds.done:
                    raise
                rounds.early = True
                break
            rounds.done += 1
        return rounds

    def _once(self, plan: Plan, purpose: Purpose) -> Outcome:
        patience_s, began_s = self.clock.patience_s(), self.clock.elapsed_s
        self.runs += 1
        outcome = self.bench.evaluate(plan, purpose, OPEN)
        took_s = self.clock.elapsed_s - began_s
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        late = outcome.status is Status.TIMED_OUT and took_s >= LIMIT_RATIO * patience_s
        if late or outcome.status is Status.SKIPPED:
            self.cut_off = (plan, purpose, took_s)
            limit = "" if self.clock.limit_s is None else f" of {format_duration(self.clock.limit_s)}"
            named = describe_plan(plan, self.baseline)
            raise BudgetSpent(f"the time budget{limit} ended before a {purpose.value} of {named} was finished")
        return outcome


def measurement_of(outcome: Outcome) -> Measurement:
    """Returns the measurement of a measured outcome."""
    assert outcome.measurement is not None, "an outcome 'measured' has a measurement"
    return outcome.measurement


@dataclass(frozen=True, slots=True)
class Recheck:
    """What a re-check measured: the figures of the accepted plan, or the failure for which it does not run.

    There are figures of the baseline, and a gain over it, if both plans run. `notes` say what limits the result.
    """

    accepted: Figures | None = None
    baseline: Figures | None = None
    gain: Ratio | None = None
    failure: Outcome | None = None
    unit: str = "samples"
    notes: tuple[str, ...] = ()


def recheck(runner: PlanRunner, plan: Plan) -> Recheck:
    """Proves the accepted plan, probes the baseline, and runs interleaved blocks of both.

    Raises:
        UserCodeError: the workload fails with the baseline too, for a reason other than memory.
        BudgetSpent: the time budget ended before a round of blocks was complete.
        DevicePoisoned, KeyboardInterrupt: as in `PlanRunner.run`.
    """
    baseline = runner.baseline
    proof = _proof(runner, plan)
    probe = proof if plan == baseline else runner.run(baseline, Purpose.PROBE)
    if not proof.measured:
        _check_workload(proof, probe, baseline)
        return Recheck(failure=proof)
    raced = [plan] if plan == baseline or not probe.measured else [plan, baseline]
    runner.say(f"measuring {'the accepted plan' if len(raced) == 1 else 'the accepted plan and the baseline'}")
    rounds = runner.rounds(raced, ROUNDS)
    if plan.key in rounds.failed:
        return Recheck(failure=rounds.failed[plan.key])
    pairing = rounds.pairing(*raced) if len(raced) == 2 else None
    counted = measurement_of(proof).tokens_per_step is not None
    return Recheck(
        accepted=_figures(plan, rounds, proof),
        baseline=_figures(baseline, rounds, probe) if len(raced) == 2 and rounds.of(baseline) else None,
        gain=None if pairing is None else pairing.ratio(),
        unit=runner.objective.unit if counted else "samples",
        notes=tuple(_notes(rounds, baseline, probe)),
    )


def confirm(runner: PlanRunner, plan: Plan) -> Figures | None:
    """Measures the accepted plan a second time in the same night: another proof, and blocks beside the baseline.

    Returns:
        The figures of this second measurement; None if the plan failed or the time budget ended before them.

    Raises:
        DevicePoisoned, KeyboardInterrupt: as in `PlanRunner.run`.
    """
    runner.say("measuring again, to confirm")
    try:
        proof = runner.run(plan, Purpose.PROOF)
        if not proof.measured:
            return None
        rounds = runner.rounds(list(dict.fromkeys([plan, runner.baseline])), ROUNDS)
    except BudgetSpent:
        return None
    return _figures(plan, rounds, proof) if rounds.of(plan) else None


def far_slower(runner: PlanRunner, plan: Plan, tuned_per_s: float | None, step_s: float) -> Verdict | None:
    """Returns the verdict on a plan that is so slow that a run of it did not end; None if the time was just too short.

    The runner has run the plan until the time budget cut it off. `tuned_per_s` is its throughput in the search that
    found it, None if that is not comparable, and `step_s` the seconds of its optimizer step there.
    """
    if tuned_per_s is None or runner.cut_off is None or runner.cut_off[0] != plan:
        return None
    _, purpose, took_s = runner.cut_off
    steps, start_s = (PROOF_STEPS, runner.bench.proof_start_s) if purpose is Purpose.PROOF else (BLOCK_STEPS, 0.0)
    expected_s = start_s + steps * step_s
    if took_s <= RUNAWAY_RATIO * expected_s + RUNAWAY_S:
        return None
    most_per_s = tuned_per_s * steps * step_s / (took_s - start_s)
    bound, then = (rate_text(each, runner.objective.unit) for each in (most_per_s, tuned_per_s))
    reason = (
        f"slower than {bound}: a {purpose.value} of {steps} steps did not end in {format_duration(took_s)}; at {then}, "
        f"as in the search that found the plan, it takes {format_duration(expected_s)}"
    )
    return Verdict(kind=VerdictKind.REGRESSION, reason=reason, moved=("slower",), expected_per_s=tuned_per_s)


def _proof(runner: PlanRunner, plan: Plan) -> Outcome:
    """Returns the outcome of a proof; without a run if the workload no longer admits the plan."""
    space = runner.bench.briefing.space
    violation = SearchSpace(space).violation(completed(plan, space))
    if violation is not None:
        return Outcome(status=Status.REJECTED, reason=f"this job does not admit the plan: {violation}")
    runner.say(f"proving {describe_plan(plan, runner.baseline)}")
    return runner.run(plan, Purpose.PROOF)


def _check_workload(proof: Outcome, probe: Outcome, baseline: Plan) -> None:
    """Refuses a failure that is the workload's, not the plan's."""
    if probe.measured or probe.status.does_not_fit:
        return
    kind = NonFiniteLoss if probe.status is Status.NUMERIC else UserCodeError
    raise kind(
        f"the workload fails with the accepted plan ({proof.status.value}: {proof.reason}) and with the baseline "
        f"({baseline}: {probe.status.value}: {probe.reason}). Run one training step of your own to reproduce it",
        probe.traceback_text,
    )


def _figures(plan: Plan, rounds: Rounds, proof: Outcome) -> Figures:
    memory = measurement_of(proof).memory
    return Figures(plan=plan, rates_per_s=rounds.of(plan), peak_bytes=memory.judged_bytes, judged_by=memory.judged_by)


def _notes(rounds: Rounds, baseline: Plan, probe: Outcome) -> list[str]:
    notes = []
    if not probe.measured:
        notes.append(f"the baseline does not run: {probe.status.value}, {probe.reason}")
    if baseline.key in rounds.failed:
        outcome = rounds.failed[baseline.key]
        notes.append(f"a block of the baseline failed: {outcome.status.value}, {outcome.reason}")
    if rounds.early:
        notes.append(f"the time budget ended the measurement after {rounds.done} of {ROUNDS} rounds")
    return notes
