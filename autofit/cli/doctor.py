"""`autofit doctor`: finds what wastes memory in a training step. The user's code runs in this process."""

import argparse
import atexit
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from ctypes import CDLL
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from autofit import devices
from autofit.cli import values
from autofit.cli.outcome import say
from autofit.cli.saving import check_output
from autofit.core.errors import UsageError, UserCodeError
from autofit.core.outcome import Status
from autofit.core.printable import ascii_json, redacted
from autofit.core.units import parse_time
from autofit.doctor.diagnose import diagnose_workload
from autofit.doctor.diagnosis import Diagnosis, draw
from autofit.doctor.findings import chosen
from autofit.doctor.loops import Enough, ScriptObserver
from autofit.doctor.page import render
from autofit.doctor.seen import resting
from autofit.doctor.session import TIME_S, Scope
from autofit.failures.classify import classify
from autofit.failures.evidence import collect
from autofit.probing.remote.worker import workload_of
from autofit.reports import writing
from autofit.reports.canvas import Canvas
from autofit.reports.sentences import counted
from autofit.workloads import factory

FOUND = 4
"""Exit code if something of `--fail-on` was found."""
ANY = "any"
_USAGE = 2
"""Exit code of a script that `argparse` ends because of its arguments."""
QUIET = {"WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "NEPTUNE_MODE": "debug"}
"""Variables that keep a script's experiment trackers from logging seven steps as a run."""
UNSET: Mapping[str, object] = {
    "device": None,
    "global_batch": None,
    "max_grad_norm": None,
    "arg": [],
    "seed": None,
    "no_runs": False,
    "time": None,
}
"""Arguments that are for targets alone, each with its value where it was not given."""


def execute(given: argparse.Namespace) -> int:
    """Observes the target or the script, prints what was found, and returns the exit code.

    Raises:
        UsageError: a name is unknown, there is no such script, or it does not take an argument.
        UserCodeError: the user's code raised an error before anything was observed.
    """
    _check(given)
    if given.html is not None:
        check_output(given.html, writing.check_replaceable, force=given.force)
    wanted = values.names(given.fail_on) or ()
    chosen([name for name in wanted if name != ANY] or None)  # raises for an unknown name, before anything runs
    detectors = chosen(values.names(given.kinds), values.names(given.skip) or ())
    limit_s = TIME_S if given.time is None else parse_time(given.time)
    scope = Scope(detectors, given.steps, runs=not given.no_runs, time_s=math.inf if limit_s is None else limit_s)
    scope.checked()
    with ExitStack() as undo:
        undo.enter_context(_only_the_result_on_stdout())
        end = partial(_end_now, given, wanted, undo)
        try:
            found = _of_target(given, scope) if given.script is None else _of_script(given, scope, end)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; nothing was found or written") from None
    return _show(given, wanted, found)


def _show(given: argparse.Namespace, wanted: Sequence[str], found: Diagnosis) -> int:
    """Prints what was found, and returns the exit code."""
    if given.html is not None:
        writing.write(writing.marked(render(found)), given.html, force=given.force)
    if given.json:
        print(ascii_json(found.model_dump_json(by_alias=True, indent=2)))
    else:
        print(draw(found, Canvas.of(sys.stdout), minor=given.all))
    if found.failed:
        return UserCodeError.exit_code
    shown = [each.id for each in found.findings if not each.minor]
    return FOUND if any(name in wanted or ANY in wanted for name in shown) else 0


def _end_now(given: argparse.Namespace, wanted: Sequence[str], undo: ExitStack, found: Diagnosis) -> NoReturn:
    """Prints what was found and ends this process, whose script swallows every exception."""
    undo.close()
    code = _show(given, wanted, found)
    sys.stdout.flush()
    os._exit(code)


@contextmanager
def _only_the_result_on_stdout() -> Iterator[None]:
    """Sends to stderr what the user's code prints, also by its processes, extensions and functions at exit."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        CDLL(None).fflush(None)  # what extensions have printed
        os.dup2(kept, 1)
        os.close(kept)
        atexit.register(_close_stdout)


def _close_stdout() -> None:
    sys.stdout.flush()
    sys.stdout = sys.stderr


def _check(given: argparse.Namespace) -> None:
    """Raises a UsageError if an argument belongs to a target and a script was given, or the reverse."""
    if given.script is None and given.arguments:
        raise UsageError("found arguments after `--`; expected them with --script alone. Use --arg NAME=VALUE.")
    others = [name for name, unset in UNSET.items() if getattr(given, name) != unset]
    if given.script is not None and others:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise UsageError(
            f"found {names} beside --script, which runs as it is. Give the script its arguments after `--`."
        )


def _of_target(given: argparse.Namespace, scope: Scope) -> Diagnosis:
    with resting() as lines:
        arguments = factory.make(given.target, values.keywords(given.arg))
    overrides = {"global_batch_size": given.global_batch, "max_grad_norm": given.max_grad_norm}
    device = devices.choose(given.device or arguments.get("device"))
    if not given.quiet:
        say(f"watching {given.steps + 1} training steps on {device.name()} ...")
    return diagnose_workload(
        workload_of(arguments, overrides),
        device,
        given.target,
        replace(scope, resting=lines),
        may_move=True,
        seed=given.seed or 0,
    )


def _of_script(given: argparse.Namespace, scope: Scope, end: Callable[[Diagnosis], NoReturn]) -> Diagnosis:
    script = Path(given.script)
    if not script.is_file():
        raise UsageError(f"found no file {given.script}; expected a Python script that trains. Correct the path.")
    sys.argv[:] = [given.script, *given.arguments]
    sys.path.insert(0, str(script.resolve().parent))
    observer = ScriptObserver(given.script, scope, end)
    if not given.quiet:
        say(f"running {given.script} until {given.steps + 1} optimizer steps are done ...")
    failure, fix, trace = _run(given.script, observer)
    if observer.error is not None:
        raise observer.error
    if (found := observer.diagnosis) is not None:
        if trace and found.failed:
            print(trace, file=sys.stderr)
        return found
    if failure:
        raise UserCodeError(f"{given.script} failed before two optimizer steps were done: {failure}. {fix}.", trace)
    raise UsageError(
        f"found {counted(observer.updates, 'optimizer step')} that {given.script} made in this process; expected at "
        "least 2, since the first is not watched. For a loop without an optimizer, such as an evaluation, use "
        "`for batch in autofit.watch(loader)`. Processes that it starts are not watched either: give a script, or "
        "arguments, with which it trains by itself."
    )


def _run(script: str, observer: ScriptObserver) -> tuple[str, str, str]:
    """Runs a script and returns how it failed, what to do, and the traceback; "" for none."""
    try:
        with TemporaryDirectory() as folder, observer:
            os.environ.update(QUIET, MLFLOW_TRACKING_URI=folder)
            vars(observer.module).update(runpy.run_path(script, run_name="__main__"))
    except Enough:
        pass
    except SystemExit as end:
        fix = "Give it its arguments after `--`" if end.code == _USAGE and len(sys.argv) == 1 else "Fix it first"
        return "" if end.code in (None, 0) else f"it ended with the exit code {end.code}", fix, ""
    except Exception as error:  # noqa: BLE001  # the script's
        full = classify(collect(error)).status is Status.OUT_OF_MEMORY
        fix = "Run it with a smaller batch, which shows the same waste" if full else "Fix it first"
        text = f"it raised {type(error).__name__}: {error}".rstrip(".")
        return text, fix, redacted(traceback.format_exc())
    return "", "", ""
