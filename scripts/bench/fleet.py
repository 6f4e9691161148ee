"""Overhead of a plan that a worker runs, beyond the run itself, with several workers on one database.

    python -m scripts.bench.fleet --study postgresql+psycopg://host/database [--workers 4] [--plans 60]

A tuner's queue is kept filled with plans. Worker processes take them, sleep in place of a run, and record the
outcome. The time in which they were all busy, less the sleep, is the overhead: looking for a plan, taking it, its
record and its outcome. It ends with exit code 1 if this exceeds 100 ms a plan, or if a plan was lost or run twice.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from uuid import uuid4

from autofit.search.fleet_workers import POLL_S

from autofit.core.briefing import Briefing
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.gate_verdict import Checked, GateVerdict
from autofit.core.knob import Knob
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.fleet.worker import SearchWorker
from autofit.memory.trace import Trace
from autofit.probing.child_request import Target
from autofit.search.bench import Bench
from autofit.study.fleet import Fleet
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from autofit.study.reference import dereferenced
from autofit.study.study import Study
from scripts.bench.search.simulated import MIB, space_of

MOST_S = 0.1
"""Limit on the overhead of a plan."""
PLAN_S = 0.2
"""Seconds that a worker sleeps in place of a run."""
AHEAD = 2
"""Number of plans for each worker that are queued or run at a time, so that no worker waits for the tuner."""
LIMIT_S = 300
"""Maximum time for all plans."""
SPACE = space_of((Knob(name="unroll", values=tuple(range(64)), default=0),), (8, 16), 8)
BRIEFING = Briefing(
    space=SPACE.facts,
    environment=Environment(workload="fleet", device_type="fake", device_name="Fake", capacity_bytes=2**34),
    budget=Budget(memory_bytes=1024 * MIB),
    enforced=True,
)


@dataclass(frozen=True)
class Sleeping:
    """A bench whose runs are a sleep, and are noted in a file."""

    notes: Path
    briefing: Briefing = BRIEFING
    proof_start_s: float = 0.0

    def evaluate(self, plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        with self.notes.open("a") as file:
            file.write(f"{plan.key}\n")
        time.sleep(PLAN_S)
        return Outcome(status=Status.NUMERIC, reason="a sleep has no loss")

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        return Checked()

    def trace(self, plan: Plan) -> Trace:
        raise AssertionError("a bench without an account was asked for a trace")

    record = trace


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        overhead_s: overhead of one plan of one worker.
        per_worker: number of plans of each worker.
        twice: number of plans that ran more than once.
        lost: number of plans that have not run, or have no outcome.
    """

    overhead_s: float
    per_worker: tuple[int, ...]
    twice: int
    lost: int

    @property
    def holds(self) -> bool:
        """Whether the overhead is within its limit, and each plan ran once."""
        return self.overhead_s <= MOST_S and not self.twice and not self.lost


def work(url: str, notes: Path) -> None:
    """Is a worker, until it is ended."""

    @contextmanager
    def opened(target: Target) -> Iterator[Bench]:
        yield Sleeping(notes)

    SearchWorker(Place.of(url), None, opened).work(LIMIT_S)


def measure(url: str, workers: int, plans: int) -> Measured:
    """Runs plans in worker processes."""
    with ExitStack() as held:
        notes = Path(held.enter_context(tempfile.TemporaryDirectory()))
        study = _study(url)
        held.callback(study.close)
        fleet = held.enter_context(Fleet.opened(Place.of(url)))
        number = held.enter_context(fleet.offering(_offer(study)))
        for each in range(workers):
            held.enter_context(_process(url, notes / str(each)))
        _wait(lambda: len(fleet.workers(number)) == workers)
        queue, began_s = study.queue(number), time.monotonic()
        left = list(islice(SPACE.plans(), plans))
        queued, pending = dict[int, Plan](), dict[int, Plan]()
        while (left or pending) and time.monotonic() < began_s + LIMIT_S:
            while left and len(pending) < AHEAD * workers:
                plan = left.pop()
                pending[queue.put(plan)] = plan
            queued |= pending
            done = queue.finished(pending)
            for each in done:
                del pending[each]
            time.sleep(0.0 if done else POLL_S)
        ended_s = time.monotonic() - began_s
        ran = [file.read_text().split("\n")[:-1] for file in notes.iterdir()]
    count = Counter(key for keys in ran for key in keys)
    lost = len(pending) + len(left) + sum(plan.key not in count for plan in queued.values())
    twice = sum(times > 1 for times in count.values())
    return Measured(ended_s * workers / len(queued) - PLAN_S, tuple(len(keys) for keys in ran), twice, lost)


def _study(url: str) -> Study:
    return Study.open(
        url,
        name=f"fleet-{uuid4().hex[:8]}",
        environment=BRIEFING.environment,
        space=SPACE.facts,
        objective=Objective(),
        memory_bytes=BRIEFING.budget.memory_bytes,
    )


def _offer(study: Study) -> SearchOffer:
    return SearchOffer(
        study=study.name,
        target="fleet",
        environment=BRIEFING.environment,
        memory_bytes=BRIEFING.budget.memory_bytes,
        objective=Objective(),
    )


@contextmanager
def _process(url: str, notes: Path) -> Iterator[None]:
    """Starts a worker process and ends it. The URL is not in its command line."""
    command = [sys.executable, "-m", "scripts.bench.fleet", "--study", "env:FLEET", "--notes", str(notes)]
    process = subprocess.Popen(command, env={**os.environ, "FLEET": url})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _wait(until: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not until():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"the workers did not begin within {LIMIT_S} s")
        time.sleep(0.1)


def main(words: Sequence[str] | None = None) -> int:
    """Prints what was measured. Returns 1 if it does not hold."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.fleet", description=__doc__)
    parser.add_argument("--study", required=True, metavar="URL", help="the database: a URL, env:NAME or file:PATH")
    parser.add_argument("--workers", type=int, default=4, help="number of processes (default: %(default)s)")
    parser.add_argument("--plans", type=int, default=60, help="number of plans, at most 128 (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    url = str(dereferenced(given.study))
    if given.notes is not None:
        work(url, given.notes)
        return 0
    found = measure(url, given.workers, given.plans)
    print(f"{given.workers} workers, {given.plans} plans of {PLAN_S:g} s; plans of each worker: {found.per_worker}")
    print(f"overhead of a plan {1e3 * found.overhead_s:.0f} ms, at most {1e3 * MOST_S:.0f} ms")
    print(f"ran twice {found.twice}, lost {found.lost}")
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(found) | {"plan_s": PLAN_S}, indent=1) + "\n", encoding="utf-8")
    return int(not found.holds)


if __name__ == "__main__":
    sys.exit(main())
