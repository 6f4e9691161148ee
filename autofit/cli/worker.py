"""`autofit worker`: runs plans for the searches that share a database, in a child process."""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from autofit import locks
from autofit.cli.interrupting import terminable
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, printable
from autofit.core.units import parse_duration
from autofit.fleet.worker import SearchWorker, WorkDone
from autofit.nightly.history import History
from autofit.nightly.jobs_file import read_jobs
from autofit.nightly.night import NightOptions, run_night
from autofit.probing.child_request import Target
from autofit.probing.remote.bench import RemoteBench
from autofit.reports.counting import counted
from autofit.search.bench import Bench
from autofit.study.location import Place
from autofit.study.reference import dereferenced


def execute(given: argparse.Namespace) -> int:
    """Runs plans until no search needs any for the idle time, or until the process is stopped."""
    place = Place.of(dereferenced(given.study))
    idle_s = math.inf if given.idle is None else parse_duration(given.idle)

    def say(text: str) -> None:
        if not given.quiet:
            print(f"autofit: {printable(text)}", file=sys.stderr, flush=True)

    with terminable("the search runs the plan of this worker again"):
        say(f"waiting for searches at {place.shown}")

        def take_part(jobs: str) -> None:
            _take_part(jobs, place, given.device, say)

        done = SearchWorker(place, given.device, lambda target: _opened(target, say), say, take_part).work(idle_s)
    _tell(done, given)
    return 0


@contextmanager
def _opened(target: Target, say: locks.Say) -> Iterator[Bench]:
    """Opens a target in a child process that has the device to itself."""
    with ExitStack() as held:
        claim = locks.claiming(held, lambda: locks.patience_s(None), say)
        yield held.enter_context(RemoteBench(target, claim=claim))


def _take_part(path: str, place: Place, device: str | None, say: locks.Say) -> None:
    """Checks jobs of a shared night.

    Raises:
        AutofitError: see `autofit.nightly.night.run_night`, or the jobs file has another history.
    """
    jobs = read_jobs(path)
    if Place.of(jobs.history) != place:
        raise UsageError(
            f"found the history {jobs.history_shown} in {path}; expected {place.shown}, as the worker has. "
            "Give both the same database."
        )
    history = History.open(jobs.history, jobs.aside)
    result = run_night(jobs, history, NightOptions(say=say, show_trace=say, share=True, device=device))
    say(f"{counted(len(result.records), 'job')} checked")


def _tell(done: WorkDone, given: argparse.Namespace) -> None:
    if given.json:
        found = {
            "plans": done.plans,
            "searches": done.searches,
            "nights": done.nights,
            "refused": sorted(set(done.refused.values())),
        }
        print(ascii_json(json.dumps(found, indent=2)))
        return
    plans, searches = counted(done.plans, "plan"), f"{done.searches} search{'' if done.searches == 1 else 'es'}"
    nights = f", {counted(done.nights, 'night')} taken part in" if done.nights else ""
    print(f"{plans} run for {searches}{nights}")
