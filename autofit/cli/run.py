"""`autofit run`: runs a script, and tunes what it trains where its training starts. All output goes to stderr."""

import argparse
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autofit.cli import values
from autofit.cli.outcome import INTERRUPTED, say
from autofit.cli.saving import check_output, save_plan
from autofit.core.answer import Answer
from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, UsageError, WorkloadError
from autofit.core.units import parse_time
from autofit.fit import Fit
from autofit.integrations.observed_loop import ObservedLoop, ObservedWorkload, accelerate_precision
from autofit.integrations.observed_trainers import OnTuned, TunedTrainers
from autofit.reports.canvas import Canvas
from autofit.reports.summary import brief
from autofit.search.search import SearchInterrupted
from autofit.study.location import dereferenced

_LINES = """\
To tune it, add three lines before its loop:
    import autofit
    fit = autofit.tune(model, loader, optimizer=optimizer, step_fn=lambda model, batch: ...)  # the loss of a batch
    print(fit)"""
_APPLIED = "the plan is applied to this training, which needs none of the lines above"


def execute(given: argparse.Namespace) -> int:
    """Runs the script as Python does, and returns its exit code.

    Raises:
        UsageError: there is no such script, or an option cannot be used.
    """
    script = Path(given.script)
    if not script.is_file():
        raise UsageError(f"found no file {given.script}; expected a Python script that trains. Correct the path.")
    check_output(Path(given.output), force=given.force)
    run = _Run(given)
    sys.argv[:] = [given.script, *given.arguments]
    sys.path.insert(0, str(script.resolve().parent))
    warnings.filterwarnings(
        "ignore", r"Using `torch\.compile\(module\)` when there are global hooks"
    )  # those of `loop`
    with run.loop, TunedTrainers(run.begin, run.arguments):
        code = _exit_code(run, given.script)
    if code or run.tuned or not run.loop.here:
        return code
    if not run.loop.searched:
        say(f"{given.script} made no optimizer step in this process, so that nothing was tuned. {_LINES}")
    elif not given.quiet:
        say(f"{given.script} calls autofit.tune itself: nothing else was tuned, and {given.output} is not written.")
    return code


def _exit_code(run: "_Run", script: str) -> int:
    """Runs the script. An error that ends it is shown as Python shows it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:  # the script's, as Python handles it
        if error is run.failed:
            raise
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


class _Run:
    """A script that runs: what was asked, and whether its training was tuned.

    `tuned` says whether a training has started. After the error `failed` of the search, the script must not train.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.loop = ObservedLoop(self._on_step)
        self.arguments = _arguments(given)
        self.tuned = False
        self.failed: AutofitError | None = None

    def begin(self) -> OnTuned | None:
        """Ends the observation where a training starts; returns what tunes the first one of this process.

        A script that has tuned by itself is left alone.
        """
        self.loop.close()
        if self.tuned or self.loop.searched or not self.loop.here:
            return None
        self.tuned = True
        return self._answer

    def _on_step(self, optimizer: torch.optim.Optimizer, closure: bool) -> None:
        if self.begin() is None:
            return
        lines = ""

        def find() -> Fit:
            nonlocal lines
            observed = self.loop.workload(optimizer, closure)
            lines = _lines(observed, self._given.output)
            return observed.tune(self.arguments)

        self._answer(find, lambda fit: say(lines) if fit.plan != fit.baseline.plan else None, "")

    def _answer(self, find: Callable[[], Fit], apply: Callable[[Fit], None], applied: str = _APPLIED) -> None:
        """Tunes; saves and shows what was found; and applies it. The script continues unless it must not train."""
        try:
            fit = find()
        except SearchInterrupted as stopped:
            self._show(stopped.answer)
            raise KeyboardInterrupt(str(stopped)) from None
        except (RestoreError, DevicePoisoned) as error:
            self.failed = error
            raise
        except Exception as error:  # noqa: BLE001  # whatever fails, the script need not
            kind = "" if isinstance(error, AutofitError) else f"internal error, {type(error).__name__}: "
            advice = _LINES if type(error) in (UsageError, WorkloadError) else "The script continues as it is."
            return say(f"{self._given.script} was not tuned: {kind}{error}\n{advice}")
        self._show(fit.answer)
        try:
            apply(fit)
        except AutofitError as error:
            return say(f"the plan was not applied: {error}")
        return say(applied) if applied else None

    def _show(self, found: Answer) -> None:
        given = self._given
        unsaved = save_plan(found, given.output, force=given.force)
        print(brief(found, Canvas.of(sys.stderr), given.output), file=sys.stderr)
        if unsaved or not given.quiet:
            say(unsaved or f"plan written to {given.output}")


def _lines(observed: ObservedWorkload, plan_file: str) -> str:
    """Returns what to change in a script whose loop continues as it is."""
    loss = f", with {observed.about} in fit.prepare" if observed.about else ""
    lines = [
        f"the script continues as it is. To train under the plan, write the lines above in place of its loop{loss}."
    ]
    if isinstance(observed.loader, list):
        text = "The plan was measured on the batches of the first step. The loader is any iterable of such batches."
        lines.append(text)
    if observed.autocast not in (None, torch.float16):
        lines.append("Compute the loss under the autocast of your loop, in a step_fn: the plan was measured so.")
    if accelerate_precision():
        lines += [
            "With Accelerate, write instead:",
            "    from autofit.integrations.accelerate import accelerator_arguments, loader_arguments",
            f"    accelerator = Accelerator(**accelerator_arguments({plan_file!r}))",
            f"    loader = DataLoader(dataset, **loader_arguments({plan_file!r}))",
        ]
    return "\n".join(lines)


def _arguments(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `autofit.tune` that were given."""
    parse_time(given.time)  # raises before the script starts, as `values` does
    return values.asked(
        given,
        time_budget=given.time,
        global_batch_size=given.global_batch,
        max_global_batch_size=given.max_global_batch,
        max_grad_norm=given.max_grad_norm,
        objective=given.objective,
        searcher=given.searcher,
        study=dereferenced(given.study),
        planned_steps=given.planned_steps,
        listeners=tuple(given.track) or None,
        progress=not given.quiet,
    )
