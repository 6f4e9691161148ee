"""JobCheck: one job in one night. Opens it, re-checks the accepted plan, judges it, and tunes again if that is due."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from autofit import planfile
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, BudgetSpent, PlanFileError, StorageError
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.recommendation import Recommendation
from autofit.core.wording import describe_plan
from autofit.nightly import proposals, retune
from autofit.nightly.history import History
from autofit.nightly.job import JobsFile
from autofit.nightly.judging import Tonight, failed, judge
from autofit.nightly.opening import OpenBench, Say
from autofit.nightly.plan_runner import CountedBench, PlanRunner
from autofit.nightly.recheck import confirm, far_slower, recheck
from autofit.nightly.record_draft import RecordDraft
from autofit.nightly.records import Verdict, VerdictKind
from autofit.nightly.schedule import Scheduled
from autofit.search.event import Event
from autofit.search.request import Request

PARTS = 3
"""Parts of the work on a job that may each take its time: re-check, tuning, and comparison of the two plans."""
_SHOWN_EVENTS = ("stage", "busy", "trial", "proof")


@dataclass(frozen=True, slots=True)
class NightContext:
    """What all jobs of a night share.

    Attributes:
        night: identifier of the night.
        clock: time of the night.
        jobs: the jobs file.
        history: the records of all nights, in the storage in which searches keep their trials.
        open_bench: opens the workload of a job.
        today: returns the present time, in UTC.
        say: receives one line for people.
    """

    night: str
    clock: Clock
    jobs: JobsFile
    history: History
    open_bench: OpenBench
    today: Callable[[], datetime]
    say: Say


class JobCheck:
    """One job in one night.

    Args:
        scheduled: the job with its earlier records.
        context: what all jobs of the night share.
        jobs_left: number of jobs that share the time of the night that is left, this one included.

    Attributes:
        draft: the record, as far as it is known.
    """

    def __init__(self, scheduled: Scheduled, context: NightContext, jobs_left: int) -> None:
        self._job, self._past, self._context = scheduled.job, scheduled.past, context
        self._jobs_left = jobs_left
        self._objective = Objective(unit=self._job.objective)
        self.draft = RecordDraft(self._job.name, context.night, context.today, Clock(now=context.clock.now))

    def run(self) -> None:
        """Checks the job. Afterwards the draft has a verdict.

        Raises:
            AutofitError: the job could not be opened or checked; see `opened`, `recheck` and `autofit.planfile.load`.
            KeyboardInterrupt: the user stopped the night.
        """
        job, context = self._job, self._context
        accepted = planfile.load(job.plan) if job.plan.exists() else None
        if accepted is None:
            planfile.check_replaceable(job.plan)
        self._clock = Clock(now=context.clock.now, limit_s=self._time_s(PARTS))
        with context.open_bench(job, self._clock, context.say, context.jobs.folder) as bench:
            counted = CountedBench(bench)
            self.draft.opened(counted)
            environment = counted.briefing.environment
            context.say(f"on {environment.device_name} ({environment.device_type})")
            self._runner = PlanRunner(counted, self._objective, self._clock, context.say)
            if accepted is None:
                self._tune_first()
            else:
                self._check(accepted)

    def _check(self, accepted: Recommendation) -> None:
        verdict, runs = self._measure(accepted)
        due = retune.due_for(self._past, accepted, self._runner.bench.briefing.environment, verdict, runs=runs)
        if due.note:
            self._note(due.note)
        if due.reason:
            self._tune_again(accepted, due.reason, runs=runs)
        elif (waiting := proposals.new_path(self._job.plan)).exists():
            self._note(f"{waiting.name} was proposed by an earlier night. To use it: {self._accepting}")

    def _measure(self, tuned: Recommendation) -> tuple[Verdict, bool]:
        """Re-checks a plan and judges it. Returns the verdict, and whether the plan runs within its budget.

        A regression is measured a second time before it is called one.
        """
        self._begin(self._time_s())
        plan, draft, environment = tuned.plan, self.draft, self._runner.bench.briefing.environment
        comparable = tuned.objective.unit == self._objective.unit and environment.comparable(tuned.environment)
        tuned_per_s = (tuned.rate_per_s or self._objective.score(tuned.proof)) if comparable else None
        segment = draft.measures(plan)
        try:
            found = recheck(self._runner, plan)
        except BudgetSpent:
            late = far_slower(self._runner, plan, tuned_per_s, tuned.proof.step_time_s)
            if late is None:
                raise
            draft.verdict = late
            return late, True
        if found.accepted is None:
            assert found.failure is not None, "without figures there is a failure"
            reason = f"{found.failure.status.value}: {found.failure.reason}"
            fits = not found.failure.status.does_not_fit
            draft.verdict = failed(self._past, segment, environment, reason, fits=fits)
            return draft.verdict, False
        budget_bytes = self._runner.bench.briefing.budget.memory_bytes
        tonight = Tonight(
            self._job.name, segment, environment, found.accepted, budget_bytes, found.unit, found.baseline,
            tuned_per_s if found.unit == self._objective.unit else None,
        )  # fmt: skip
        self._begin(self._time_s())
        known = not self._context.history.away
        judged = judge(self._past, tonight, lambda: confirm(self._runner, plan), known=known)
        draft.update(accepted=found.accepted, baseline=found.baseline, gain=found.gain, unit=found.unit)
        draft.update(confirmation=judged.confirmation)
        draft.verdict = judged.verdict
        for note in found.notes:
            self._note(note)
        return judged.verdict, judged.verdict.kind is not VerdictKind.DOES_NOT_FIT

    def _tune_first(self) -> None:
        """Tunes a job without a plan, and measures the new plan as later nights will."""
        self._context.say(retune.NO_PLAN)
        found = self._searched(None).recommendation
        proposals.replace(found, self._job.plan)
        self.draft.update(tuned=retune.NO_PLAN, proposed=found.plan, replaced=True)
        self.draft.verdict = Verdict(kind=VerdictKind.CANNOT_COMPARE, reason="this is the first night of the job")
        self._note(f"the first plan was written to {self._job.plan.name}: {self._described(found.plan)}")
        try:
            self._measure(found)
        except BudgetSpent as spent:
            self._note(f"the first plan was not measured beside the baseline: {spent}")

    def _tune_again(self, accepted: Recommendation, reason: str, *, runs: bool) -> None:
        """Tunes again; proposes what is better, or makes it the accepted plan."""
        self._context.say(f"tuning again: {reason}")
        try:
            result = self._searched(accepted.plan, runs=runs)
        except AutofitError as error:
            self._note(f"tuning again ({reason}) found no answer: {one_line(str(error))}")
            return
        self.draft.update(tuned=reason)
        if result.note:
            self._note(result.note)
        try:
            if result.better:
                self._keep(result, accepted)
            elif proposals.withdraw(self._job.plan):
                self._note("the proposal of an earlier night was withdrawn: this search found nothing better")
        except PlanFileError as error:
            self._note(one_line(str(error)))

    def _searched(self, accepted: Plan | None, *, runs: bool = True) -> retune.Retune:
        """Searches for a plan. If the study goes away meanwhile, searches once more in a local one."""

        def searched(study: str) -> retune.Retune:
            request = self._request(study, anew=accepted is not None)
            return retune.retune(self._runner, request, accepted, [self._show], self._begin_tuning, runs=runs)

        jobs = self._context.jobs
        if self._context.history.answers():
            try:
                return searched(jobs.history)
            except StorageError as error:
                found = one_line(str(error)).partition("; expected ")[0]
                self._note(f"the search began again in a local study, since {found}")
        return searched(str(jobs.local_study))

    def _keep(self, result: retune.Retune, accepted: Recommendation) -> None:
        path, found = self._job.plan, result.recommendation
        proposed = {"proposed": found.plan, "proposed_gain": result.gain}
        if self._job.accept == "auto":
            proposals.replace(found, path)
            proposals.withdraw(path)
            self.draft.update(**proposed, replaced=True)
            kept = proposals.previous_path(path).name
            self._note(f"{path.name} was replaced by {self._described(found.plan)}; its predecessor is {kept}")
        else:
            proposals.propose(found, path, accepted, result.gain)
            self.draft.update(**proposed)
            new = proposals.new_path(path).name
            self._note(f"{new} is proposed: {self._described(found.plan)}. To use it: {self._accepting}")

    def _note(self, text: str) -> None:
        self._context.say(text)
        self.draft.note(text)

    def _described(self, plan: Plan) -> str:
        return describe_plan(plan, self._runner.baseline)

    @property
    def _accepting(self) -> str:
        return f"autofit nightly accept {self._job.name}"

    def _request(self, study: str, *, anew: bool) -> Request:
        """Returns the options of a search.

        Args:
            study: where it keeps its trials.
            anew: search although the study knows the answer. A job that is tuned again needs another one.
        """
        return Request(
            study=study,
            objective=self._objective,
            isolated=True,
            title=self._job.workload,
            command=f"autofit nightly --job {self._job.name}",
            anew=anew,
        )

    def _show(self, event: Event) -> None:
        if event.kind in _SHOWN_EVENTS:
            self._context.say(event.text)

    def _time_s(self, parts: int = 1) -> float | None:
        """Returns the seconds for parts of the work: those of the job, within the time of the night that is left."""
        whole_s = None if self._job.time_s is None else parts * self._job.time_s
        if self._context.clock.limit_s is None:
            return whole_s
        left_s = max(self._context.clock.left_s, 0.0)
        return left_s if whole_s is None else min(whole_s, left_s)

    def _begin_tuning(self) -> Clock:
        """Begins a part of the work with this job's share of the time of the night."""
        whole_s = self._time_s()
        if whole_s is None or self._context.clock.limit_s is None:
            return self._begin(whole_s)
        return self._begin(min(whole_s, self._context.clock.left_s / self._jobs_left))

    def _begin(self, limit_s: float | None) -> Clock:
        """Gives the bench this many seconds from now, and returns a clock with the same limit."""
        self._clock.limit_s = None if limit_s is None else self._clock.elapsed_s + limit_s
        return Clock(now=self._clock.now, limit_s=limit_s)
