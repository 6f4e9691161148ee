"""Tuning a job again: when it is due, whether the search finds something better, and which file a new plan goes to.

Beside `plan.yaml` there may be `plan.new.yaml`, a better plan that waits for a person, and `plan.previous.yaml`, the
predecessor of the accepted plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from autofit import planfile
from autofit.core.answer import Answer, Ratio
from autofit.core.budget import Clock
from autofit.core.environment import Environment
from autofit.core.errors import BudgetSpent, PlanFileError
from autofit.core.plan import Plan
from autofit.files import write_atomically
from autofit.nightly.measuring import PlanRunner, Rounds
from autofit.nightly.records import NOT_MEASURED, NightRecord, Verdict, VerdictKind
from autofit.search.race import MIN_ROUNDS, TIE_ROUNDS, Pairing
from autofit.search.request import Listen, Request
from autofit.search.search import search
from autofit.study.stored_trials import completed

NO_PLAN = "the job has no plan yet"
_SHOWN_CHANGES = 3
_REASONS = {
    VerdictKind.REGRESSION: "the accepted plan is slower or needs more memory than in earlier nights",
    VerdictKind.FASTER: "the accepted plan is faster than in earlier nights",
    **dict.fromkeys(NOT_MEASURED, "the accepted plan does not run"),
}
"""Verdicts after which a job is tuned again, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Retune:
    """What a search found for a job, whether it is better than the accepted plan, and what their comparison showed.

    The gain over the accepted plan is from interleaved blocks; None if they were not compared.
    """

    answer: Answer
    gain: Ratio | None
    better: bool
    note: str


def due_for(
    past: Sequence[NightRecord], accepted: Answer, environment: Environment, verdict: Verdict
) -> tuple[str, str]:
    """Returns why a job with an accepted plan is tuned again, and a note if it is not although something changed.

    It is tuned once for each change: not again while the accepted plan, the environment and the verdict stay the same.
    """
    same = [  # nights that tried this plan in a comparable environment
        record
        for record in reversed(past)
        if record.environment
        and record.segment
        and record.segment.plan == accepted.plan.key
        and record.environment.comparable(environment)
    ]
    reasons = []
    if moved := _REASONS.get(verdict.kind):
        series = takewhile(lambda record: record.verdict.kind is verdict.kind, same)
        reasons.append((moved, [record.at for record in series if record.tuned]))
    if changed := environment.differences(accepted.environment):
        more = len(changed) - _SHOWN_CHANGES
        what = "; ".join(changed[:_SHOWN_CHANGES]) + (f"; and {more} more" if more > 0 else "")
        why = f"the environment changed since the plan was tuned: {what}"
        reasons.append((why, [record.at for record in same if record.tuned]))
    due = [reason for reason, tuned_at in reasons if not tuned_at]
    if due or not reasons:
        return "; ".join(due), ""
    return "", f"not tuned again: {reasons[0][0]}, for which it was tuned at {reasons[0][1][0]}"


def retune(
    runner: PlanRunner,
    request: Request,
    accepted: Plan | None,
    listen: Listen,
    begin: Callable[[], Clock],
    *,
    runs: bool = True,
) -> Retune:
    """Searches on the bench of the night, warm-started from the study, and compares the answer with the accepted plan.

    Args:
        runner: runs plans.
        request: the options of the search, whose time is that of the clock that `begin` returns.
        accepted: the accepted plan; None if there is none. Any answer is then better.
        listen: called with each event of the search.
        begin: gives the bench the time for the next part of the work, and returns a clock with that limit.
        runs: whether the accepted plan runs. If it does not, any other answer is better.

    Raises:
        AutofitError: as in `autofit.search.search.search`.
    """
    clock = begin()
    found = search(runner.bench, replace(request, time_s=clock.limit_s), [listen], clock)
    if accepted is not None and found.plan == completed(accepted, runner.bench.briefing.space):
        note = f"the search {'found' if runs else 'proved'} the accepted plan again"
        return Retune(found, None, better=False, note=note)
    if accepted is None or not runs:
        return Retune(found, None, better=True, note="")
    begin()
    return compared(runner, found, accepted)


def compared(runner: PlanRunner, found: Answer, accepted: Plan) -> Retune:
    """Compares the answer of a search with the accepted plan, in interleaved blocks on the same bench.

    Raises:
        DevicePoisoned, KeyboardInterrupt: as in `PlanRunner.run`.
    """
    margin = math.log1p(runner.objective.tie_ratio)

    def enough(rounds: Rounds) -> bool:
        pairing = rounds.pairing(found.plan, accepted)
        if pairing is None or pairing.pairs < MIN_ROUNDS:
            return False
        above = Pairing(pairing.log_ratio - margin, pairing.error, pairing.pairs)
        return above.surely_above or above.upper < 0

    runner.say("comparing the answer with the accepted plan")
    try:
        rounds = runner.rounds([found.plan, accepted], TIE_ROUNDS, enough)
    except BudgetSpent:
        return Retune(found, None, better=False, note="no time was left to compare the answer with the accepted plan")
    for plan, name, better in ((found.plan, "the answer", False), (accepted, "the accepted plan", True)):
        if plan.key in rounds.failed:
            outcome = rounds.failed[plan.key]
            return Retune(found, None, better, f"a block of {name} failed: {outcome.status.value}, {outcome.reason}")
    pairing = rounds.pairing(found.plan, accepted)
    if pairing is None:
        note = "too little time was left to compare the answer with the accepted plan"
        return Retune(found, None, better=False, note=note)
    gain = pairing.ratio()
    better = gain.low > math.exp(margin)
    kept = "" if better else f", which is not above the tie margin of {math.expm1(margin):.0%}: the accepted plan stays"
    return Retune(found, gain, better, f"the answer has {gain} the throughput of the accepted plan{kept}")


def new_path(plan: Path) -> Path:
    """Returns where a better plan waits to be accepted: `plan.new.yaml` for `plan.yaml`."""
    return plan.with_name(f"{plan.stem}.new{plan.suffix}")


def previous_path(plan: Path) -> Path:
    """Returns where the predecessor of an accepted plan is kept: `plan.previous.yaml` for `plan.yaml`."""
    return plan.with_name(f"{plan.stem}.previous{plan.suffix}")


def replace_plan(found: Answer, plan: Path) -> Path:
    """Makes `found` the accepted plan, atomically, and deletes a plan that waited. Returns where its predecessor is.

    Raises:
        PlanFileError: the path is not a plan file, or cannot be written.
    """
    plan.parent.mkdir(parents=True, exist_ok=True)
    target, waiting = planfile.check_replaceable(plan), new_path(plan)
    planfile.check_replaceable(waiting)
    previous = previous_path(plan)
    try:
        if target.exists():
            write_atomically(planfile.check_replaceable(previous), target.read_bytes())
    except OSError as error:
        raise PlanFileError(
            f"{previous} could not be written: {error.strerror or error}; expected a directory that exists "
            "and has space. The accepted plan is unchanged. Free space, or correct the permissions."
        ) from None
    planfile.save(found, plan)
    waiting.unlink(missing_ok=True)
    return previous


def accept(plan: Path) -> Answer:
    """Makes the plan that waits beside the accepted plan the accepted one, and returns it.

    Raises:
        PlanFileError: no plan waits, it is damaged, or a file cannot be written.
    """
    source = new_path(plan)
    if not source.exists():
        raise PlanFileError(
            f"found no new plan for {plan}; expected {source}, which `autofit nightly` writes when it finds a better "
            "plan. Run a night first."
        )
    found = planfile.load(source)
    replace_plan(found, plan)
    return found
