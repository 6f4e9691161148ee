"""Worker processes for the tests: real ones on a real database, which run the plans of a simulated device.

python -m tests.fleet.workers URL SECONDS_PER_PLAN [NAME_OF_THE_DEVICE]
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.fleet.worker import SearchWorker
from autofit.probing.child_request import Target
from autofit.search.bench import Bench
from autofit.study.location import Place
from tests.fakes import briefing_of, opened, small_bench

TARGET = Target("train.py:make_workload", arguments={"depth": 2})


def bench_taking(plan_s: float, device_name: str = "Fake 1", ran: list[str] | None = None) -> Bench:
    """Returns a simulated device on which each run takes this time, by a real clock too."""
    device = small_bench()
    briefing = briefing_of(device)
    environment = briefing.environment.model_copy(update={"device_name": device_name})

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        time.sleep(plan_s if purpose is Purpose.PROBE else 0)
        if ran is not None and purpose is Purpose.PROBE:
            ran.append(plan.key)
        return device.evaluate(plan, purpose)

    return opened(briefing.model_copy(update={"environment": environment}), evaluate)


def main(url: str, plan_s: str, device_name: str = "Fake 1") -> None:
    """Works until it is ended. Writes each text to stdout."""

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    @contextmanager
    def opened_target(target: Target) -> Iterator[Bench]:
        say(json.dumps({"opened": target.name, "arguments": dict(target.arguments)}))
        yield bench_taking(float(plan_s), device_name)

    SearchWorker(Place.of(url), None, opened_target, say).work(60.0)


@contextmanager
def working(url: str, count: int, plan_s: float, folder: Path, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts worker processes, whose words are in `folder`, and ends them."""
    processes = []
    root = Path(__file__).parents[2]
    for number in range(count):
        with (folder / f"worker{number}.txt").open("w") as words:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.fleet.workers", url, str(plan_s), *more],
                    stdout=words, stderr=subprocess.STDOUT, text=True, cwd=root,
                    env={**os.environ, "PYTHONPATH": str(root)},
                )
            )  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
