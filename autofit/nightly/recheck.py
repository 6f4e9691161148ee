"""Recheck: proves the accepted plan again and compares it with the baseline, in at most 8 runs of an unchanged job."""

from dataclasses import dataclass

from autofit.core.errors import BudgetSpent, NonFiniteLoss, UserCodeError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.core.units import format_duration
from autofit.core.wording import describe_plan
from autofit.nightly.evidence import rate_text
from autofit.nightly.plan_runner import PlanRunner, Rounds, measurement_of
from autofit.nightly.records import Figures, Verdict, VerdictKind
from autofit.search.ledger import BLOCK_STEPS, PROOF_STEPS, RUNAWAY_RATIO, RUNAWAY_S
from autofit.study.records import completed

ROUNDS = 3
"""Number of rounds of blocks in a re-check. With the proof and the probe of the baseline, a re-check takes 8 runs."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """What a re-check measured.

    Attributes:
        accepted: figures of the accepted plan; None if it does not run.
        baseline: figures of the baseline; None if it does not run, or if the accepted plan does not.
        gain: throughput of the accepted plan over the baseline; None without either.
        failure: why the accepted plan does not run; None if it does.
        unit: unit of the throughput: "samples" or "tokens".
        notes: what limits the result.
    """

    accepted: Figures | None = None
    baseline: Figures | None = None
    gain: Ratio | None = None
    failure: Outcome | None = None
    unit: str = "samples"
    notes: tuple[str, ...] = ()


def recheck(runner: PlanRunner, plan: Plan) -> Recheck:
    """Proves the accepted plan, probes the baseline, and runs interleaved blocks of both.

    Args:
        runner: runs plans.
        plan: the accepted plan.

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
    counted = measurement_of(proof).tokens_per_step is not None
    return Recheck(
        accepted=_figures(plan, rounds, proof),
        baseline=_figures(baseline, rounds, probe) if len(raced) == 2 and rounds.of(baseline) else None,
        gain=_gain(rounds, raced),
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

    Args:
        runner: has run the plan until the time budget cut it off.
        plan: the accepted plan.
        tuned_per_s: its throughput in the search that found it, in the unit of the objective; None if not comparable.
        step_s: the seconds of its optimizer step there.
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


def _gain(rounds: Rounds, raced: list[Plan]) -> Ratio | None:
    pairing = rounds.pairing(*raced) if len(raced) == 2 else None
    return None if pairing is None else pairing.ratio()


def _notes(rounds: Rounds, baseline: Plan, probe: Outcome) -> list[str]:
    notes = []
    if not probe.measured:
        notes.append(f"the baseline does not run: {probe.status.value}, {probe.reason}")
    if baseline.key in rounds.failed:
        outcome = rounds.failed[baseline.key]
        notes.append(f"a block of the baseline failed: {outcome.status.value}, {outcome.reason}")
    if rounds.early:
        done = max(map(len, rounds.rates_per_s.values()))
        notes.append(f"the time budget ended the measurement after {done} of {ROUNDS} rounds")
    return notes
