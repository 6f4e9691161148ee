"""`autofit tune`: searches in a child process and writes the plan file. This process never loads the user's code."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from autofit import locks, planfile
from autofit.cli import values
from autofit.core.budget import Clock
from autofit.core.errors import PlanFileError
from autofit.core.objective import Objective
from autofit.core.summary import printable, summarize
from autofit.core.units import parse_duration
from autofit.probing.remote import RemoteBench, Target
from autofit.search import Request, search
from autofit.trackers.progress import Progress


def execute(given: argparse.Namespace) -> int:
    """Tunes the target, writes the plan file, prints the recommendation."""
    clock = Clock()
    target, request = _target(given), _request(given)
    _check_output(Path(given.output))
    with _terminable(), ExitStack() as held, RemoteBench(target, claim=_claiming(held, request)) as bench:
        if not given.quiet:
            _say_device(bench.briefing.environment.device_type, bench.briefing.environment.device_name)
        with Progress.of(not given.quiet, request.objective.unit) as listen:
            recommendation = search(bench.briefing, bench.evaluate, request, [listen], clock, bench.trace, bench.record)
    planfile.save(recommendation, given.output)
    if given.json:
        print(recommendation.model_dump_json(by_alias=True, indent=2))
    else:
        print(printable(summarize(recommendation)))
        if not given.quiet:
            print(f"autofit: plan written to {given.output}; see `autofit show {given.output}`", file=sys.stderr)
    return 0


def _claiming(held: ExitStack, request: Request) -> Callable[[str, str], None]:
    """Returns what locks a device until `held` is closed; a lock that this process holds already is no obstacle."""

    def claim(key: str, name: str) -> None:
        wait_s = locks.patience_s(request.time_s)
        held.enter_context(locks.held(key, name, wait_s, lambda text: print(f"autofit: {text}", file=sys.stderr)))

    return claim


def _target(given: argparse.Namespace) -> Target:
    return Target(
        name=given.target,
        arguments=values.keywords(given.arg),
        overrides=values.overrides(given),
        device=given.device,
        options=values.options(given).model_copy(update={"cold": given.planned_steps is not None}),
    )


def _request(given: argparse.Namespace) -> Request:
    return Request(
        time_s=None if given.time is None else parse_duration(given.time),
        max_trials=given.trials,
        study=given.study,
        searcher=given.searcher,
        objective=Objective(unit=given.objective or "samples"),
        planned_steps=given.planned_steps,
        seed=given.seed or 0,
        isolated=True,
    )


def _check_output(path: Path) -> None:
    """Refuses, before minutes are spent, an output that cannot be written or is something else than a plan."""
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise PlanFileError(f"{path} cannot be written: {folder} is no writable directory. Give another --output.")
    planfile.check_replaceable(path)


def _say_device(kind: str, name: str) -> None:
    if kind == "cpu":
        print(f"autofit: no accelerator asked for or found: tuning for the CPU ({name})", file=sys.stderr)
    else:
        print(f"autofit: tuning on {name} ({kind})", file=sys.stderr)


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes a SIGTERM an interrupt, so that the child is ended and the trial recorded."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt("terminated; the same command goes on from the trials in the study")
