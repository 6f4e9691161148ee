"""Nights without a device: simulated benches behind the jobs of a jobs file, a virtual clock, and a real history."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autofit import planfile
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.history import History
from autofit.nightly.job_check import Say
from autofit.nightly.jobs import FOLDER, Job, JobsFile
from autofit.nightly.night import NightOptions, run_night
from autofit.nightly.records import NightRecord, NightResult
from autofit.search.request import Bench
from tests.fakes import FakeBench, FakeTime, briefing_of, opened
from tests.nightly.benches import calm, faster, recommended

Fault = Callable[[str, Plan, Purpose], None]


@dataclass
class MachineRoom:
    """Jobs whose workloads are simulated.

    Attributes:
        folder: folder of the jobs file.
        time: the clock of every bench and night.
        benches: bench of each job, by its name.
        versions: versions of the environment.
        errors: error of a job, raised when it is opened.
        before_run: called before each run with the job, the plan and the purpose; it may raise.
        opened: names of the jobs that were opened, in order.
        said: what was said to people.
        start: UTC time of the first night.
        problems: errors of the jobs file.
        time_s: seconds for a whole night.
        days: days since the first night; each night is a day after the last.
        location: storage of the history; a file beside the jobs file by default.
    """

    folder: Path
    time: FakeTime = field(default_factory=FakeTime)
    benches: dict[str, FakeBench] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0"})
    errors: dict[str, Exception] = field(default_factory=dict)
    before_run: Fault = field(default=lambda job, plan, purpose: None)
    opened: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    days: float = -1.0
    start: datetime = field(default_factory=lambda: datetime.now(UTC))
    problems: tuple[str, ...] = ()
    time_s: float | None = None
    location: str = ""

    def add(self, name: str, accepted: Callable[[FakeBench], Plan] | None = faster, **fields: Any) -> Job:
        """Adds a job; `accepted` chooses its accepted plan, None for a job without one."""
        data = {"name": name, "workload": "train.py", "plan": f"{name}.yaml"} | fields
        job = Job.model_validate(data, context={FOLDER: self.folder})
        bench = self.benches[name] = calm(time=self.time)
        self.jobs.append(job)
        if accepted is not None:
            planfile.save(recommended(bench, accepted(bench), self.briefing(name)), job.plan)
        return job

    def briefing(self, name: str) -> Briefing:
        """What is known of a job before its first probe."""
        found = briefing_of(self.benches[name])
        environment = found.environment.model_copy(update={"versions": self.versions, "workload": f"{name}-data"})
        return found.model_copy(update={"environment": environment})

    @property
    def file(self) -> JobsFile:
        """The jobs file."""
        return JobsFile(
            path=self.folder / "jobs.yaml",
            history=self.location or str(self.folder / "study.journal"),
            time_s=self.time_s,
            jobs=tuple(self.jobs),
            problems=self.problems,
        )

    @property
    def history(self) -> History:
        """The history, opened anew, as each process does."""
        return History(self.file.history, self.file.mark)

    def today(self) -> datetime:
        """Returns the present time of the simulation."""
        return self.start + timedelta(days=self.days, seconds=self.time.seconds)

    def night(self, **options: Any) -> NightResult:
        """Runs one night, a day after the last."""
        self.days += 1
        self.opened.clear()
        fields: dict[str, Any] = {
            "clock": Clock(now=self.time), "today": self.today, "say": self.said.append, "show_trace": self.said.append
        }  # fmt: skip
        return run_night(self.file, self.history, NightOptions(**(fields | options)), self.open_bench)

    @contextmanager
    def open_bench(self, job: Job, clock: Clock, say: Say, folder: Path) -> Iterator[Bench]:
        """Opens the bench of a job."""
        self.opened.append(job.name)
        self.time.advance(1.0)
        if job.name in self.errors:
            raise self.errors[job.name]

        def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
            self.before_run(job.name, plan, purpose)
            if clock.patience_s() <= 0:
                return Outcome(status=Status.SKIPPED, reason="the time budget ran out before it began")
            return self.benches[job.name].evaluate(plan, purpose)

        yield opened(self.briefing(job.name), evaluate)

    def records(self, name: str) -> tuple[NightRecord, ...]:
        """Returns the records of a job in the history."""
        return self.history.of_job(name)

    def runs(self, name: str) -> int:
        """Returns the number of runs of a job so far."""
        return len(self.benches[name].runs)


def stop_at(count: int, error: BaseException) -> Callable[[str, Plan, Purpose], None]:
    """Returns what raises in the run with this number."""
    left = [count]

    def run(job: str, plan: Plan, purpose: Purpose) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    return run
