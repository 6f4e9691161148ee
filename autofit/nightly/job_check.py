"""One job in one night: opens it, re-checks the accepted plan, judges it, and tunes again if that is due."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from autofit import locks, planfile
from autofit.core.answer import Answer
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, BudgetSpent, PlanFileError
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.core.wording import describe_plan
from autofit.nightly import retune
from autofit.nightly.jobs import Job, JobsFile
from autofit.nightly.measuring import PlanRunner, confirm, far_slower, recheck
from autofit.nightly.records import NOT_MEASURED, HistorySegment, NightRecord, Verdict, VerdictKind
from autofit.nightly.verdict import Tonight, failed, judge
from autofit.probing.remote.bench import RemoteBench
from autofit.probing.watchdog import Watchdog
from autofit.search.request import Bench, Event, Request
from autofit.study import splits
from autofit.trackers.progress import waiting

PARTS = 3
"""Parts of the work on a job that may each take its time: re-check, tuning, and comparison of the two plans."""
_MOST_LETTERS, _MOST_NOTES = 800, 10
"""Maximum length of a reason or a note, and number of notes: databases limit the length of a record."""
_SHOWN_EVENTS = ("stage", "busy", "trial", "proof")

Say = Callable[[str], None]
"""Receives one line for people."""
OpenBench = Callable[[Job, Clock, Say, Path], AbstractContextManager[Bench]]
"""Opens a bench: the job, the clock of its time, what receives lines for people, and the folder of the jobs file."""


@contextmanager
def opened(job: Job, clock: Clock, say: Say, folder: Path) -> Iterator[Bench]:
    """Opens the workload of a job in a child process, whose working directory is the folder of the jobs file.

    This process never loads the user's code. The device is locked until the context ends.

    Raises:
        Busy: another tuner holds the device for half of the time left.
        DeviceMissing: the device is not on this machine.
        AutofitError: as in `RemoteBench`.
    """
    with chdir(folder), ExitStack() as held:
        watch = held.enter_context(Watchdog(clock, say))

        def claim(key: str, what: str) -> None:
            wait_s = locks.patience_s(None if clock.limit_s is None else max(clock.left_s, 0.0))
            held.enter_context(locks.held(key, what, wait_s, waiting(watch, lambda event: say(event.text))))

        log = folder / ".autofit" / f"{job.name}.log"  # the output of the user's code
        yield held.enter_context(RemoteBench(job.target, beat=watch.beat, claim=claim, clock=clock, log=log))


@dataclass(frozen=True, slots=True)
class NightContext:
    """What all jobs of a night share."""

    night: str
    clock: Clock
    jobs: JobsFile
    open_bench: OpenBench
    today: Callable[[], datetime]
    say: Say


class JobCheck:
    """One job in one night. What is known of it is kept, so that an interrupt loses nothing that has a verdict.

    `past` are its earlier records, oldest first. `jobs_left` jobs, this one included, share the time of the night that
    is left.
    """

    def __init__(self, job: Job, past: tuple[NightRecord, ...], context: NightContext, jobs_left: int) -> None:
        self.verdict: Verdict | None = None
        self.notes: list[str] = []
        self._job, self._past, self._context, self._jobs_left = job, past, context, jobs_left
        self._objective = Objective(unit=job.objective)
        self._began = Clock(now=context.clock.now)
        self._clock = Clock(now=context.clock.now, limit_s=self._time_s(PARTS))
        self._fields: dict[str, Any] = {}

    def run(self) -> None:
        """Checks the job. Afterwards there is a verdict.

        Raises:
            AutofitError: the job could not be opened or checked; see `opened`, `recheck` and `autofit.planfile.load`.
            KeyboardInterrupt: the user stopped the night.
        """
        job, context = self._job, self._context
        accepted = planfile.load(job.plan) if job.plan.exists() else None
        if accepted is None:
            planfile.check_replaceable(job.plan)
        with context.open_bench(job, self._clock, context.say, context.jobs.folder) as bench:
            environment = bench.briefing.environment
            self._fields |= {"environment": environment, "budget_bytes": bench.briefing.budget.memory_bytes}
            context.say(f"on {environment.device_name} ({environment.device_type})")
            runner = PlanRunner(bench, self._objective, self._clock, context.say)
            try:
                if accepted is None:
                    self._tune_first(runner)
                else:
                    self._check(runner, accepted)
            finally:
                self._fields["probes"] = runner.runs

    def note(self, text: str) -> None:
        """Adds a note for people."""
        self._context.say(text)
        self.notes.append(text)

    def failed(self, error: Exception) -> None:
        """Records that the work on the job ended with an error. A verdict that was reached before is kept."""
        text = one_line(str(error)) or type(error).__name__
        if self.verdict is None:
            self.verdict = Verdict(kind=VerdictKind.ERROR, reason=text.removesuffix("."))
        else:
            self.notes.append(f"the work on this job ended with an error: {text}")

    def record(self) -> NightRecord:
        """Returns the record as it is now. There must be a verdict."""
        assert self.verdict is not None, "a record has a verdict"
        return NightRecord(
            id=uuid4().hex,
            job=self._job.name,
            night=self._context.night,
            at=self._context.today().isoformat(timespec="seconds"),
            duration_s=round(self._began.elapsed_s, 2),
            verdict=self.verdict.model_copy(update={"reason": self.verdict.reason[:_MOST_LETTERS]}),
            notes=tuple(note[:_MOST_LETTERS] for note in self.notes[:_MOST_NOTES]),
            **self._fields,
        )

    def _check(self, runner: PlanRunner, accepted: Answer) -> None:
        verdict = self._measure(runner, accepted)
        environment = runner.bench.briefing.environment
        reason, note = retune.due_for(self._past, accepted, environment, verdict)
        if note:
            self.note(note)
        files = splits.places(self._context.jobs.history, self._job.plan)
        trained = [each for each in splits.read(files, environment) if each.plan == accepted.plan]
        if trained:
            reason = "; ".join(filter(None, [reason, trained[-1].words]))
        if reason:
            self._tune_again(runner, accepted, reason, runs=verdict.kind not in NOT_MEASURED and not trained)
        elif (waiting_plan := retune.new_path(self._job.plan)).exists():
            self.note(f"{waiting_plan.name} was found by an earlier night. {self._to_accept}")

    def _measure(self, runner: PlanRunner, tuned: Answer) -> Verdict:
        """Re-checks a plan and judges it. A regression is measured a second time before it is called one."""
        self._begin(self._time_s())
        environment = runner.bench.briefing.environment
        comparable = tuned.objective.unit == self._objective.unit and environment.comparable(tuned.environment)
        tuned_per_s = (tuned.rate_per_s or self._objective.score(tuned.proof)) if comparable else None
        segment = self._fields["segment"] = HistorySegment.of(environment, tuned.plan)
        try:
            found = recheck(runner, tuned.plan)
        except BudgetSpent:
            late = far_slower(runner, tuned.plan, tuned_per_s, tuned.proof.step_time_s)
            if late is None:
                raise
            self.verdict = late
            return late
        if found.accepted is None:
            assert found.failure is not None, "without figures there is a failure"
            reason = f"{found.failure.status.value}: {found.failure.reason}"
            fits = not found.failure.status.does_not_fit
            self.verdict = failed(self._past, segment, environment, reason, fits=fits)
            return self.verdict
        comparable_per_s = tuned_per_s if found.unit == self._objective.unit else None
        budget_bytes = runner.bench.briefing.budget.memory_bytes
        tonight = Tonight(segment, environment, found.accepted, budget_bytes, found.unit, comparable_per_s)
        self._begin(self._time_s())
        self.verdict, second = judge(self._past, tonight, lambda: confirm(runner, tuned.plan))
        self._fields |= {"accepted": found.accepted, "confirmation": second, "baseline": found.baseline}
        self._fields |= {"gain": found.gain, "unit": found.unit}
        for note in found.notes:
            self.note(note)
        return self.verdict

    def _tune_first(self, runner: PlanRunner) -> None:
        """Tunes a job without a plan, and measures the new plan as later nights will."""
        self._context.say(retune.NO_PLAN)
        found = self._searched(runner, None).answer
        retune.replace_plan(found, self._job.plan)
        self._fields |= {"tuned": retune.NO_PLAN, "proposed": found.plan, "replaced": True}
        self.verdict = Verdict(kind=VerdictKind.CANNOT_COMPARE, reason="this is the first night of the job")
        self.note(f"the first plan was written to {self._job.plan.name}: {describe_plan(found.plan, runner.baseline)}")
        try:
            self._measure(runner, found)
        except BudgetSpent as spent:
            self.note(f"the first plan was not measured beside the baseline: {spent}")

    def _tune_again(self, runner: PlanRunner, accepted: Answer, reason: str, *, runs: bool) -> None:
        """Tunes again; a better plan waits beside the accepted one, or replaces it."""
        self._context.say(f"tuning again: {reason}")
        try:
            result = self._searched(runner, accepted.plan, runs=runs)
        except AutofitError as error:
            self.note(f"tuning again ({reason}) found no answer: {one_line(str(error))}")
            return
        self._fields["tuned"] = reason
        if result.note:
            self.note(result.note)
        waits = retune.new_path(self._job.plan)
        try:
            if result.better:
                auto, words = self._job.accept == "auto", describe_plan(result.answer.plan, runner.baseline)
                if auto:
                    kept = retune.replace_plan(result.answer, self._job.plan)
                    self.note(f"{self._job.plan.name} was replaced by {words}; its predecessor is {kept.name}")
                else:
                    planfile.save(result.answer, waits)
                    self.note(f"{waits.name} is better: {words}. {self._to_accept}")
                self._fields |= {"proposed": result.answer.plan, "proposed_gain": result.gain, "replaced": auto}
            elif waits.exists():
                planfile.check_replaceable(waits)
                waits.unlink()
                self.note(f"{waits.name} of an earlier night was deleted: this search found nothing better")
        except (PlanFileError, OSError) as error:
            self.note(one_line(str(error)))

    def _searched(self, runner: PlanRunner, accepted: Plan | None, *, runs: bool = True) -> retune.Retune:
        def show(event: Event) -> None:
            if event.kind in _SHOWN_EVENTS:
                self._context.say(event.text)

        request = Request(
            study=self._context.jobs.history,
            objective=self._objective,
            isolated=True,
            title=self._job.name,
            command=f"autofit nightly --job {self._job.name}",
            plan_file=str(self._job.plan),
        )
        return retune.retune(runner, request, accepted, show, self._begin_tuning, runs=runs)

    @property
    def _to_accept(self) -> str:
        return f"To use it: autofit nightly accept {self._job.name}"

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
