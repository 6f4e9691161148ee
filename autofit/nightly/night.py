"""Night: one run over all jobs of a jobs file, here or on a Ray cluster. A job that fails never stops the others."""

import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from autofit import locks
from autofit.core import errors
from autofit.core.budget import Clock
from autofit.core.printable import one_line, redacted
from autofit.core.uninterrupted import uninterrupted
from autofit.core.units import format_duration
from autofit.nightly import outputs
from autofit.nightly.history import History, Scheduled, scheduled
from autofit.nightly.job_check import JobCheck, NightContext, OpenBench, Say, opened
from autofit.nightly.jobs import JobsFile, read_jobs
from autofit.nightly.records import NOT_MEASURED, NightRecord, NightResult, VerdictKind

FailOn = Literal["regression", "change", "never"]
"""Which verdicts set the exit code. Errors set it in any case."""
REGRESSION = 4
INTERRUPTED = 130
WORST_FIRST = (
    INTERRUPTED,
    errors.AutofitError.exit_code,
    errors.UsageError.exit_code,
    errors.UserCodeError.exit_code,
    errors.DevicePoisoned.exit_code,
    errors.NothingFits.exit_code,
    REGRESSION,
    errors.Busy.exit_code,
    errors.BudgetSpent.exit_code,
    0,
)
"""Exit codes, the worst first. A job that could not be checked may hide a regression, so it is worse than one; a job
that was only skipped is not."""
PATIENCE_S = 60.0
"""Maximum duration of the command `on_regression`. A night does not wait longer for it."""
HASTE_S = 10.0
"""The same after an interrupt. Schedulers kill a process soon after they ask it to end."""
RETRIES = 2
"""Number of times that Ray starts a task again whose machine or process was lost."""


@dataclass(frozen=True, slots=True)
class NightOptions:
    """The options of a night that the jobs file does not have.

    Attributes:
        only: names of the jobs to check; () for all. Such a night neither continues another one nor is continued.
        time_s: seconds for the whole night, instead of those of the jobs file; None for those.
        clock: seconds since the command began; its limit is set by the night.
        today: returns the present time, in UTC.
        show_trace: receives the traceback of the user's code, or of an internal error.
    """

    only: Sequence[str] = ()
    time_s: float | None = None
    fail_on: FailOn = "regression"
    clock: Clock = field(default_factory=Clock)
    today: Callable[[], datetime] = lambda: datetime.now(UTC)
    say: Say = field(default=lambda text: None)
    show_trace: Say = field(default=lambda text: None)


def run_night(jobs: JobsFile, history: History, options: NightOptions, open_bench: OpenBench = opened) -> NightResult:
    """Checks the jobs, one after the other, and returns the result of the night.

    The record of a job is in the history before the next job begins; one that cannot be written is tried again with the
    next one. An interrupt ends the running job, keeps what has a verdict, and leaves the night unfinished, so that the
    next call continues it.

    Raises:
        Busy: another night over all jobs runs. Nights over named jobs may run beside it; each job is checked by one.
        UsageError: a job was named that does not exist.
        StudyError: the history cannot be used.
    """
    # A night that waits for another one would repeat it. Nights over named jobs lock these jobs alone.
    whole = nullcontext() if options.only else locks.held(lock_of(jobs), f"the jobs file {jobs.path}", 0.0)
    with whole:
        return _Night(jobs, history, options, open_bench).run()


def worst(codes: Iterable[int]) -> int:
    """Returns the worst of several exit codes; 0 for none."""
    return min(codes, key=WORST_FIRST.index, default=0)


def code_of(record: NightRecord, fail_on: FailOn) -> int:
    """Returns the exit code of a job that was checked.

    A plan that does not run counts as a regression, unless another plan replaced it in this night: a plan that only
    waits to be accepted does not help the trainings that use the accepted one. The error of a job that could not be
    opened does not count here: it has an exit code of its own.
    """
    kind = record.verdict.kind
    fails = kind in NOT_MEASURED and record.segment is not None
    lost = kind is VerdictKind.REGRESSION or (fails and not record.replaced)
    changed = lost or kind is VerdictKind.FASTER or bool(record.verdict.changed) or record.proposed is not None
    return REGRESSION if (fail_on == "regression" and lost) or (fail_on == "change" and changed) else 0


def notify(command: Sequence[str], text: str, folder: Path, patience_s: float = PATIENCE_S) -> str:
    """Runs a command in a folder with a text on its standard input, without a shell. Returns what went wrong, or ""."""
    what, quiet = f"the command {one_line(command[0])}", subprocess.DEVNULL  # its arguments may hold secrets
    try:
        subprocess.run(
            list(command), cwd=folder, input=text.encode(), stdout=quiet, stderr=quiet, timeout=patience_s, check=True
        )
    except (OSError, ValueError) as error:
        return f"{what} could not be started: {getattr(error, 'strerror', None) or error}"
    except subprocess.TimeoutExpired:
        return f"{what} did not end within {format_duration(patience_s)} and was killed"
    except subprocess.CalledProcessError as error:
        return f"{what} ended with exit code {error.returncode}"
    return ""


def lock_of(jobs: JobsFile) -> str:
    """Returns the key of the lock that a night over all jobs holds."""
    return f"night-{jobs.path.resolve()}"


class _Night:
    """One night, while it runs."""

    def __init__(self, jobs: JobsFile, history: History, options: NightOptions, open_bench: OpenBench) -> None:
        self._jobs, self._history, self._options = jobs, history, options
        now = options.today()
        unfinished = None if options.only else history.unfinished_night()
        self._id = unfinished or now.isoformat(timespec="seconds")
        self._order = scheduled(jobs, history, now, options.only)
        self._clock = options.clock
        self._clock.limit_s = options.time_s or jobs.time_s
        self._context = NightContext(self._id, self._clock, jobs, open_bench, options.today, options.say)
        self._records = [each.done for each in self._order if each.done is not None]
        self._unchecked: dict[str, str] = {}
        self._notes: list[str] = []
        self._codes = [errors.UsageError.exit_code] if jobs.problems else []

    def run(self) -> NightResult:
        if not self._options.only:
            self._history.begin_night(self._id)
        if self._records:
            self._options.say(f"continuing the night of {self._id}")
        left = [each for each in self._order if each.done is None]
        try:
            for number, each in enumerate(left):
                self._check(each, len(left) - number)
            if not self._store() and not self._options.only:  # else the next call checks again what is not on record
                self._history.end_night(self._id)
        except KeyboardInterrupt as interrupt:
            self._options.say(str(interrupt) or "interrupted")
            self._codes.append(INTERRUPTED)
            known = {*self._unchecked, *(record.job for record in self._records)}
            missing = [each.job.name for each in left if each.job.name not in known]
            self._unchecked |= dict.fromkeys(missing, "the night was interrupted")
        return self._result()

    def _result(self) -> NightResult:
        codes = [*self._codes, *(code_of(record, self._options.fail_on) for record in self._records)]
        if away := self._store():
            jobs = ", ".join(dict.fromkeys(record.job for record in self._history.unwritten))
            self._notes.append(f"not in the history: the records of {jobs}. {away}")
            codes.append(errors.StudyError.exit_code)
        if not self._records and self._unchecked and not worst(codes):
            codes.append(errors.BudgetSpent.exit_code)  # the time of the night did not even suffice for one job
        return NightResult(
            night=self._id,
            records=tuple(self._records),
            problems=self._jobs.problems,
            unchecked=self._unchecked,
            notes=(*self._notes, *self._history.notes),
            exit_code=worst(codes),
        )

    def _check(self, each: Scheduled, jobs_left: int) -> None:
        """Checks one job, and keeps its record before the next one."""
        name = each.job.name
        if self._clock.left_s <= 0:
            self._unchecked[name] = "the time of the night ran out"
            return
        self._options.say(f"{name}: {each.why}")
        context = replace(self._context, say=lambda text: self._options.say(f"{name}: {text}"))
        check = JobCheck(each.job, each.past, context, jobs_left)
        try:
            with locks.held(f"{lock_of(self._jobs)}-{name}", f"the job {name}", 0.0):
                check.run()
        except KeyboardInterrupt:
            if check.verdict is not None:
                check.notes.append("interrupted: the work that follows the verdict was not finished")
                self._keep(check.record(), each, HASTE_S)
            raise
        except Exception as error:  # noqa: BLE001  # whatever happens to a job, the others are still checked
            self._failed(error, check, name)
        if check.verdict is not None:
            self._keep(check.record(), each)

    def _failed(self, error: Exception, check: JobCheck, name: str) -> None:
        """Records that a job was skipped, or that its check ended with an error."""
        text = one_line(str(error)) or type(error).__name__
        if isinstance(error, errors.Busy | errors.DeviceMissing | errors.BudgetSpent) and check.verdict is None:
            self._options.say(f"{name}: not checked: {text}")
            self._unchecked[name] = text
            night_over = isinstance(error, errors.BudgetSpent) and self._clock.left_s <= 0
            skipped = errors.Busy if isinstance(error, errors.DeviceMissing) else type(error)
            self._codes.append(0 if night_over else skipped.exit_code)
            return
        if isinstance(error, errors.AutofitError):
            code, trace = error.exit_code, getattr(error, "traceback_text", "")
        else:
            code, trace = errors.AutofitError.exit_code, traceback.format_exc()
        if trace:
            self._options.show_trace(redacted(trace))
        self._codes.append(code)
        check.failed(error)

    def _keep(self, record: NightRecord, each: Scheduled, patience_s: float = PATIENCE_S) -> None:
        """Keeps a record, then runs the command of the job if it has lost speed, memory or its plan, or failed."""
        with uninterrupted():
            self._records.append(record)
            self._store(record)
        self._options.say(f"{record.job}: {record.verdict.kind.value}: {record.verdict.reason}")
        alarming = code_of(record, "regression") or record.verdict.kind is VerdictKind.ERROR
        if alarming and each.job.on_regression:
            text = outputs.markdown_of_job(record, each.past)
            problem = notify(each.job.on_regression, text, self._jobs.folder, patience_s)
            if problem:
                self._notes.append(f"{record.job}: on_regression: {problem}")
                self._options.say(self._notes[-1])

    def _store(self, *records: NightRecord) -> str:
        """Appends records to the history. Returns why it could not be written, or "". The next call tries again."""
        try:
            self._history.append(*records)
        except errors.StudyError as error:
            return str(error)
        return ""


def run_on_ray(jobs: JobsFile, history: History, options: NightOptions) -> NightResult:
    """Checks the jobs as Ray tasks, the longest unchecked first, and returns the result of the night.

    Ray chooses the machine of each task, which does what `autofit nightly JOBS --job NAME` does there. The jobs file,
    the plans and the workloads must have the same paths on all machines, as on a shared directory, and the history must
    be a database that all can reach.

    It connects to the cluster of `RAY_ADDRESS` or of this machine, and starts a local one if there is none. The time of
    the night limits each task, its time in Ray's queue included.

    Raises:
        Busy: another night over all jobs runs on this machine.
        UsageError: Ray is not installed, or a job was named that does not exist.
    """
    try:
        import ray  # noqa: PLC0415  # an extra
    except ImportError:
        raise errors.UsageError(
            "found no Ray; expected the package `ray`, which --on ray needs. Install it: "
            "pip install 'torch-autofit[ray]'"
        ) from None
    order = [each.job for each in scheduled(jobs, history, options.today(), options.only)]
    time_s = options.time_s or jobs.time_s
    until = None if time_s is None else time.time() + time_s
    with locks.held(lock_of(jobs), f"the jobs file {jobs.path}", 0.0):
        started = not ray.is_initialized()
        if started:
            ray.init(log_to_driver=False)
        try:
            tasks = {}
            for job in order:
                gpus = job.gpus if job.gpus is not None else min(ray.cluster_resources().get("GPU", 0), 1)
                remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_checked_in_task)
                options.say(f"{job.name}: submitted to Ray with {gpus:g} GPUs")
                tasks[job.name] = remote.remote(str(jobs.path), job.name, options.fail_on, until)
            return _gathered(ray, tasks, jobs, options)
        finally:
            if started:
                ray.shutdown()


def _checked_in_task(path: str, name: str, fail_on: FailOn, until: float | None) -> str:
    """Checks one job in a process of Ray until a time in seconds since 1970. Returns the result as JSON."""
    jobs = read_jobs(path)
    left_s = None if until is None else max(until - time.time(), 1e-3)
    options = NightOptions(only=(name,), time_s=left_s, fail_on=fail_on)
    return run_night(jobs, History(jobs.history, jobs.mark), options).model_dump_json(by_alias=True)


def _gathered(ray: Any, tasks: dict[str, Any], jobs: JobsFile, options: NightOptions) -> NightResult:
    """Waits for the tasks and joins their results. A task that Ray lost is a job that was not checked."""
    found, unchecked = list[NightResult](), dict[str, str]()
    codes = [errors.UsageError.exit_code] if jobs.problems else []
    for name, task in tasks.items():
        try:
            found.append(NightResult.model_validate_json(ray.get(task)))
            options.say(f"{name}: done, exit code {found[-1].exit_code}")
        except KeyboardInterrupt:
            for each in tasks.values():
                ray.cancel(each)
            unchecked |= dict.fromkeys(list(tasks)[len(found) + len(unchecked) :], "the night was interrupted")
            codes.append(INTERRUPTED)
            break
        except ray.exceptions.RayError as error:
            unchecked[name] = f"its Ray task did not finish: {one_line(str(error).strip().splitlines()[-1])}"
            codes.append(errors.DevicePoisoned.exit_code)
            options.say(f"{name}: {unchecked[name]}")
    return NightResult(
        night=options.today().isoformat(timespec="seconds"),
        records=tuple(record for each in found for record in each.records),
        problems=jobs.problems,
        unchecked={name: why for each in found for name, why in each.unchecked.items()} | unchecked,
        notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
        exit_code=worst([*codes, *(each.exit_code for each in found)]),
    )
