"""Retune: whether a job is tuned again, and whether what the search finds is better than the accepted plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autofit.core.budget import Clock
from autofit.core.environment import Environment
from autofit.core.errors import BudgetSpent
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio, Recommendation
from autofit.nightly.plan_runner import PlanRunner, Rounds
from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from autofit.search.race import MIN_ROUNDS, TIE_ROUNDS, Pairing
from autofit.search.request import Listen, Request
from autofit.search.search import search
from autofit.study.records import completed

NO_PLAN = "the job has no plan yet"
_SHOWN_CHANGES = 3
_FAILS = "the accepted plan does not run"
_MOVED = {
    VerdictKind.REGRESSION: "the accepted plan is slower or needs more memory than in earlier nights",
    VerdictKind.FASTER: "the accepted plan is faster than in earlier nights",
}
"""Verdicts after which a job is tuned again, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Due:
    """Whether a job is tuned again.

    Attributes:
        reason: why it is; "" if it is not.
        note: why it is not, although something changed; "" otherwise.
    """

    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Retune:
    """What a search found for a job.

    Attributes:
        recommendation: the answer of the search.
        gain: throughput of its plan over the accepted plan, from interleaved blocks; None if they were not compared.
        better: whether it is to be proposed.
        note: what the comparison showed.
    """

    recommendation: Recommendation
    gain: Ratio | None
    better: bool
    note: str


def due_for(
    past: Sequence[NightRecord],
    accepted: Recommendation,
    environment: Environment,
    verdict: Verdict,
    *,
    runs: bool = True,
) -> Due:
    """Returns whether a job with an accepted plan is tuned again.

    It is tuned once for each change: not again while the accepted plan, the environment and the verdict stay the same.

    Args:
        past: earlier records of the job, oldest first.
        accepted: the accepted plan.
        environment: the present environment.
        verdict: the verdict of this night.
        runs: whether the accepted plan runs.
    """
    changed = environment.differences(accepted.environment)
    reasons = []
    moved = _MOVED.get(verdict.kind, "") if runs else _FAILS
    if moved:
        reasons.append((moved, _tuned_for(past, accepted.plan, environment, verdict.kind)))
    if changed:
        more = len(changed) - _SHOWN_CHANGES
        what = "; ".join(changed[:_SHOWN_CHANGES]) + (f"; and {more} more" if more > 0 else "")
        reasons.append(
            (f"the environment changed since the plan was tuned: {what}", _tuned_in(past, accepted.plan, environment))
        )
    due = [reason for reason, tuned_at in reasons if not tuned_at]
    if due:
        return Due(reason="; ".join(due))
    return Due(note=f"not tuned again: {reasons[0][0]}, for which it was tuned at {reasons[0][1]}" if reasons else "")


def retune(
    runner: PlanRunner,
    request: Request,
    accepted: Plan | None,
    listen: Sequence[Listen],
    begin: Callable[[], Clock],
    *,
    runs: bool = True,
) -> Retune:
    """Searches on the bench of the night, warm-started from the study, and compares the answer with the accepted plan.

    Args:
        runner: runs plans.
        request: the options of the search; its time is that of the clock that `begin` returns.
        accepted: the accepted plan; None if there is none. Any answer is then better.
        listen: called with each event of the search.
        begin: gives the bench the time for the next part of the work, and returns a clock with that limit.
        runs: whether the accepted plan runs. If it does not, any other answer is better.

    Raises:
        AutofitError: as in `autofit.search.search.search`.
    """
    clock = begin()
    found = search(runner.bench, replace(request, time_s=clock.limit_s), listen, clock)
    if accepted is None:
        return Retune(found, None, better=True, note="")
    if found.plan == completed(accepted, runner.bench.briefing.space):
        return Retune(
            found, None, better=False, note=f"the search {'found' if runs else 'proved'} the accepted plan again"
        )
    if not runs:
        return Retune(found, None, better=True, note="")
    begin()
    return compared(runner, found, accepted)


def compared(runner: PlanRunner, found: Recommendation, accepted: Plan) -> Retune:
    """Compares the answer of a search with the accepted plan, in interleaved blocks on the same bench.

    Args:
        runner: runs plans.
        found: the answer of the search.
        accepted: the accepted plan, which runs; another one.

    Raises:
        DevicePoisoned, KeyboardInterrupt: as in `PlanRunner.run`.
    """
    margin = math.log1p(runner.objective.tie_ratio)

    def enough(rounds: Rounds) -> bool:
        pairing = rounds.pairing(found.plan, accepted)
        return pairing is not None and pairing.pairs >= MIN_ROUNDS and _decided(pairing, margin)

    runner.say("comparing the answer with the accepted plan")
    try:
        rounds = runner.rounds([found.plan, accepted], TIE_ROUNDS, enough)
    except BudgetSpent:
        return Retune(found, None, better=False, note="no time was left to compare the answer with the accepted plan")
    return _concluded(found, accepted, rounds, margin)


def _concluded(found: Recommendation, accepted: Plan, rounds: Rounds, margin: float) -> Retune:
    for plan, name, better in ((found.plan, "the answer", False), (accepted, "the accepted plan", True)):
        if plan.key in rounds.failed:
            outcome = rounds.failed[plan.key]
            return Retune(found, None, better, f"a block of {name} failed: {outcome.status.value}, {outcome.reason}")
    pairing = rounds.pairing(found.plan, accepted)
    if pairing is None:
        return Retune(
            found, None, better=False, note="too little time was left to compare the answer with the accepted plan"
        )
    gain = pairing.ratio()
    better = gain.low > math.exp(margin)
    kept = "" if better else f", which is not above the tie margin of {math.expm1(margin):.0%}: the accepted plan stays"
    return Retune(found, gain, better, f"the answer has {gain} the throughput of the accepted plan{kept}")


def _decided(pairing: Pairing, margin: float) -> bool:
    """Returns whether a ratio is above or below the tie margin beyond the noise."""
    above = Pairing(pairing.log_ratio - margin, pairing.error, pairing.pairs)
    return above.surely_above or above.upper < 0


def _tuned_in(past: Sequence[NightRecord], plan: Plan, environment: Environment) -> str:
    """Returns when a job with this plan was last tuned in this environment; "" if it never was."""
    return next((record.at for record in _of(reversed(past), plan, environment) if record.tuned), "")


def _tuned_for(past: Sequence[NightRecord], plan: Plan, environment: Environment, kind: VerdictKind) -> str:
    """Returns when the job was last tuned in the unbroken series of nights with this verdict; "" if it was not."""
    for record in _of(reversed(past), plan, environment):
        if record.verdict.kind is not kind:
            return ""
        if record.tuned:
            return record.at
    return ""


def _of(records: Iterator[NightRecord], plan: Plan, environment: Environment) -> Iterator[NightRecord]:
    """Yields the records of a plan in a comparable environment. Nights that could not check the job do not count."""
    for record in records:
        there, segment = record.environment, record.segment
        if there is not None and segment is not None and segment.plan == plan.key and there.comparable(environment):
            yield record
