"""`autofit tune`: searches in a child process and writes the plan file. This process never loads the user's code."""

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from autofit import locks
from autofit.cli import values
from autofit.cli.outcome import INTERRUPTED, say, terminable
from autofit.cli.saving import check_output, save_plan
from autofit.core.answer import Answer
from autofit.core.briefing import DOCTOR, Examiner, Options
from autofit.core.budget import Clock
from autofit.core.environment import launched_ranks
from autofit.core.errors import AutofitError, PlanFileError
from autofit.core.objective import Objective
from autofit.core.printable import ascii_json
from autofit.core.units import parse_time
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.probing.watchdog import Watchdog
from autofit.reports.applying import command_line
from autofit.reports.canvas import Canvas
from autofit.reports.summary import brief
from autofit.reports.writing import attached
from autofit.search.request import DEFAULT_STUDY, Event, Request
from autofit.search.search import STAGE, SearchInterrupted, endurance, search, training_request, with_evaluation
from autofit.study.location import dereferenced
from autofit.trackers.following import following
from autofit.trackers.progress import heartbeat, waiting, watched


def execute(given: argparse.Namespace) -> int:
    """Tunes the target, writes the plan file, prints the answer."""
    target = _target(given)
    request = _request(given)
    clock = Clock(limit_s=request.time_s, start=given.began_s)
    check_output(Path(given.output), force=given.force)
    rank, ranks = launched_ranks()
    if ranks == 1 and (given.nproc or 1) > 1:
        from autofit.cli.ranks import started  # noqa: PLC0415  # loads torch

        return started(given)
    if rank > 0:
        return _followed(target, request, clock, given)
    interrupted = False
    try:
        answer = _tuned(target, request, clock, given)
    except SearchInterrupted as stopped:
        answer, interrupted = stopped.answer, True
    unsaved = save_plan(answer, given.output, force=given.force)
    if given.json:
        print(ascii_json(answer.model_dump_json(by_alias=True, indent=2)))
    else:
        print(brief(answer, Canvas.of(sys.stdout), given.output))
    if unsaved:  # on stderr, since the result above is the only document on stdout
        say(unsaved)
        return PlanFileError.exit_code
    if not (given.json or given.quiet):
        say(f"plan written to {given.output}")
    if interrupted:
        say("interrupted; the plan is the best so far, and the same command resumes from the trials in the study")
    return INTERRUPTED if interrupted else 0


def _followed(target: Target, request: Request, clock: Clock, given: argparse.Namespace) -> int:
    """Follows the search of rank 0, which says all there is to say. Returns the exit code."""
    from autofit.cli.ranks import searched  # noqa: PLC0415  # loads torch

    given.quiet, given.track = True, []
    try:
        searched(target, request, clock, given)
    except SearchInterrupted:
        return INTERRUPTED
    except AutofitError as error:
        return error.exit_code
    return 0


def _tuned(target: Target, request: Request, clock: Clock, given: argparse.Namespace) -> Answer:
    """Returns the result of the search, with that of evaluation if the target has an `eval_loader`."""
    if launched_ranks()[1] > 1:
        from autofit.cli.ranks import searched as searched_on_ranks  # noqa: PLC0415  # loads torch

        return searched_on_ranks(target, request, clock, given)
    found, evaluates = _searched(target, request, clock, given)
    if not evaluates:
        return found

    def searched(options: Options, request: Request, clock: Clock) -> Answer:
        return _searched(replace(target, evaluation=True, options=options), request, clock, given)[0]

    return with_evaluation(found, target.options, request, clock, searched)


def _searched(target: Target, request: Request, clock: Clock, given: argparse.Namespace) -> tuple[Answer, bool]:
    """Opens the target in a child process and searches, with progress on stderr unless it is to be quiet.

    Beside the result, returns whether the target has an evaluation, for which the search has left time.
    """
    track = () if target.evaluation else given.track
    with (
        terminable("the same command resumes from the trials in the study"),
        following(
            track, warn=lambda text: say(f"warning: {text}"), attach=attached, time_s=request.time_s
        ) as followers,
        ExitStack() as held,
    ):
        watch, shown = held.enter_context(Watchdog(clock)), not given.quiet
        with watched(shown, request, watch) as listen:
            listen(Event("stage", STAGE if target.evaluation else f"looking at {given.target}"))
            wait_s, wait = locks.patience_s(request.time_s), waiting(watch, listen)

            def claim(key: str, what: str) -> None:
                held.enter_context(locks.held(key, what, wait_s, wait))

            bench = held.enter_context(
                RemoteBench(target, beat=watch.beat, claim=claim, clock=clock, log=_log(request.study))
            )
            there = bench.briefing.environment
            found = f"tuning on {there.device_name} ({there.device_type})"
            if there.is_host:
                absent = "" if given.device else "; no accelerator was found"
                found = f"tuning for the CPU ({there.device_name}){absent}"
            listen(Event("stage", found))
        if bench.briefing.evaluates:  # known only once the target is open
            request = training_request(request)
        with watched(shown, request, watch) as listen:
            words = ["doctor", target.name, *(word for each in given.arg for word in ("--arg", each))]
            examine = partial(bench.examine, Examiner(function=DOCTOR, more=f"`{command_line(words)}`"))
            heard = [listen, *followers, heartbeat(watch)]
            answer = search(bench, request, heard, clock, examine, endurance(bench.examine, request))
            return answer, bench.briefing.evaluates


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
        time_s=parse_time(given.time),
        max_trials=given.trials,
        study=dereferenced(given.study),
        searcher=given.searcher,
        objective=Objective(unit=given.objective or "samples"),
        planned_steps=given.planned_steps,
        seed=given.seed or 0,
        isolated=True,
        title=given.target,
        command=command_line(given.words),
        plan_file=given.output or "",
        prove_s=parse_time(given.prove) or 0.0,
    )


def _log(study: str | Path | None) -> Path | None:
    """Returns the log file, beside the study, for the output of the user's code; None if the study is not a file.

    Its name contains the whole name of the study, because `train.log` beside a study `train.db` may be the user's.
    """
    text = str(DEFAULT_STUDY if study is None else study)
    path = Path(os.path.expanduser(text)).absolute()  # Path.expanduser raises for an unknown user
    if "://" in text or text == ":memory:" or not path.name:
        return None
    return path.with_name(f"{path.name}.log")
