"""Shared by all stages: arguments, partial results of an interrupted stage, and exit codes.

A stage exits with 0 if it is finished, 1 if it is finished and missed a required figure, and 75 if its time limit was
reached first and the next call continues it. Any other code means that it broke.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError
from autofit.probing.remote.bench import Target
from scripts.bench import files, report
from scripts.bench.gpu.models import MODELS, Model
from scripts.bench.search.record_table import UNFINISHED


class Parts:
    """Results of the finished parts of a stage, on disk, so that a part does not run again.

    Args:
        path: file that holds them until the stage is finished.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done = files.read(path) or {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the result of a part; runs it now if it is not finished."""
        if name not in self._done:
            self._done[name] = make()
            files.write(self._path, json.dumps(self._done))
        return self._done[name]

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def clear(self) -> None:
        """Removes the file, once the results of the stage contain everything."""
        self._path.unlink(missing_ok=True)


def parser(about: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that the suite passes to every stage."""
    found = report.parser(about)
    found.add_argument(
        "--out", metavar="DIR", type=Path, default=Path(), help="folder with the results of other stages"
    )
    found.add_argument("--device", default="cuda", help='"cuda"; "cpu" for a dry run with tiny models')
    found.add_argument("--limit-s", type=float, default=500, help="stop after this many seconds")
    return found


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the arguments, with the `scale` of the models for the device."""
    given = parser.parse_args()
    given.scale = "tiny" if given.device == "cpu" else "full"
    return given


def target(model: Model, given: argparse.Namespace, free: bool = False, **options: Any) -> Target:
    """Returns the target of a benchmark model, with its memory budget."""
    return Target(
        name=model.target,
        arguments={"scale": given.scale, "free": free},
        device=given.device,
        options=Options(memory_budget=model.memory[given.scale], **options),
    )


def model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for the benchmark model."""
    parser.add_argument("model", choices=tuple(MODELS), help="the benchmark model")


def unfinished(what: str, clock: Clock) -> NoReturn:
    """Prints that the time limit was reached first, and exits with 75."""
    print(f"{what} after {clock.elapsed_s:.0f} s: call again to continue", flush=True)
    sys.exit(UNFINISHED)


def conclude(title: str, given: argparse.Namespace, work: Callable[[], tuple[str, dict[str, Any], bool]]) -> None:
    """Runs a stage and exits with its result.

    Args:
        title: the stage, for the message of an error.
        given: arguments of the stage.
        work: returns the summary, the figures, and whether the requirements are met.
    """
    try:
        summary, figures, passed = work()
    except AutofitError as error:
        report.fail(f"{title}: {error}", error.exit_code if error.exit_code > 1 else 3)
    report.finish(summary, figures, given.json, passed, given.device)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """Returns a table for the summary page."""
    return {"columns": list(columns), "rows": [[str(cell) for cell in row] for row in rows]}
