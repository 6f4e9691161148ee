"""Jobs whose workloads are recorded tables, and what is planted in their nights."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autofit import planfile
from autofit.core.answer import Answer, Candidate
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.errors import Untraceable
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from autofit.nightly.job_check import OpenBench, Say
from autofit.nightly.jobs import Job
from autofit.search.request import Bench
from scripts.bench.search.replay import TableBench
from scripts.bench.search.replay.table import Table, read_table

CALM = 0.1
"""Power of a drawn step time's ratio to the recorded one. The tables were recorded on a shared CPU, where the same plan
differs by 20 % from block to block; on an accelerator it is about a tenth of that."""
TABLES = Path(__file__).resolve().parents[2] / "tests" / "data" / "tables"


@dataclass(frozen=True)
class Planted:
    """What is different in one night.

    Attributes:
        slower_ratio: factor on all step times.
        more_memory_ratio: factor on all peaks.
        noise: standard deviation of the night's own factor on step times, as a share.
        driver: version of the driver.
    """

    slower_ratio: float = 1.0
    more_memory_ratio: float = 1.0
    noise: float = 0.004
    driver: str = "570.1"


@dataclass(frozen=True)
class PlantedChange:
    """A job over a recorded table.

    Attributes:
        name: name of the job and of the table.
        about: what is planted, in words.
        planted: returns what is different in a night, by its number from 1.
    """

    name: str
    about: str
    planted: Callable[[int], Planted]


JOBS = (
    PlantedChange(
        "gpt", "6 % slower from night 12 on", lambda night: Planted(slower_ratio=1.06 if night >= 12 else 1.0)
    ),
    PlantedChange(
        "resnet", "another driver from night 10 on", lambda night: Planted(driver="580.2" if night >= 10 else "570.1")
    ),
    PlantedChange(
        "encoder",
        "1 % more memory each night from night 9 on",
        lambda night: Planted(more_memory_ratio=1.01 ** max(night - 8, 0)),
    ),
    PlantedChange(
        "unet",
        "a noisy week, nights 8 to 14",
        lambda night: Planted(noise=0.02 if 8 <= night <= 14 else 0.004),
    ),
)


class NightBench:
    """The table of a job in one night, as a bench.

    Args:
        table: the recorded table.
        planted: what is different in this night.
        seed: decides the random draws.
    """

    proof_start_s = 0.0

    def __init__(self, table: Table, planted: Planted, seed: int) -> None:
        self._device, self._planted = TableBench(table, seed), planted
        self._recorded_s = {
            entry.plan.key: entry.outcome.measurement.step_time_s
            for entry in table.entries
            if entry.outcome.measurement is not None
        }
        self._night_ratio = planted.slower_ratio * (1 + random.Random(seed).gauss(0.0, planted.noise))
        driver = {**table.environment.versions, "driver": planted.driver}
        self.briefing = Briefing(
            space=table.space,
            environment=table.environment.model_copy(update={"versions": driver}),
            budget=table.budget,
            enforced=not table.environment.is_host,
        )

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan."""
        outcome = self._device.evaluate(plan, purpose, terms)
        found = outcome.measurement
        if found is None:
            return outcome
        memory = found.memory
        peak_bytes = round(memory.judged_bytes * self._planted.more_memory_ratio)
        recorded_s = self._recorded_s[plan.key]
        changes = {
            "step_times_s": tuple(
                self._night_ratio * recorded_s * (time_s / recorded_s) ** CALM for time_s in found.step_times_s
            ),
            "memory": memory.model_copy(update={"judged_bytes": peak_bytes}),
        }
        return outcome.model_copy(update={"measurement": found.model_copy(update=changes)})

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns that the plan keeps the gradient."""
        return Checked()

    def trace(self, plan: Plan) -> Trace:
        """Raises Untraceable: a recorded table has no step to trace."""
        raise Untraceable("a recorded table has no step to trace", "in the demo")

    record = trace


def table_of(name: str) -> Table:
    """Returns a recorded table."""
    return read_table((TABLES / f"{name}.json").read_text(encoding="utf-8"), name)


def accept_fastest(table: Table, path: Path, driver: str) -> None:
    """Writes the plan file of the fastest recorded plan that leaves room for growth."""
    room = [
        entry for entry in table.entries
        if entry.outcome.measurement is not None and entry.outcome.measured
        and entry.outcome.measurement.memory.judged_bytes < 0.7 * table.budget.memory_bytes
    ]  # fmt: skip
    speeds = TableBench(table).throughputs(Objective())
    best = max(room, key=lambda entry: speeds[entry.plan.key])
    baseline = next(entry for entry in table.entries if entry.plan == table.space.baseline)
    assert best.outcome.measurement is not None
    versions = {**table.environment.versions, "driver": driver}
    planfile.save(
        Answer(
            plan=best.plan,
            proof=best.outcome.measurement,
            baseline=Candidate(plan=baseline.plan, outcome=baseline.outcome),
            budget=table.budget,
            objective=Objective(),
            environment=table.environment.model_copy(update={"versions": versions}),
        ),
        path,
    )


def opening(night: int, jobs: tuple[PlantedChange, ...] = JOBS) -> OpenBench:
    """Returns what opens the bench of a job in a night, for `autofit.nightly.night.run_night`."""
    by_name = {job.name: job for job in jobs}

    @contextmanager
    def opened(job: Job, clock: Clock, say: Say, folder: Path) -> Iterator[Bench]:
        planted = by_name[job.name].planted(night)
        yield NightBench(table_of(job.name), planted, seed=1000 * night + len(job.name))

    return opened
