"""What every stage shares: its arguments, what is kept of a stage that was cut short, and its exit codes.

A stage exits with 0 when it is done, 1 when it is done and a required figure was missed, 75 when its time ended first
and the next call goes on where it was; anything else means that it broke.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.probing.remote.bench import Target
from scripts.bench import files, report
from scripts.bench.gpu.models import MODELS, Model
from scripts.bench.search.record_table import UNFINISHED


class Parts:
    """Results of the parts of a stage that are done, on disk: a part is not run again.

    Args:
        path: where they are kept until the stage is done.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done = files.read(path) or {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns what the part gave, running it now if it is not done."""
        if name not in self._done:
            self._done[name] = make()
            files.write(self._path, json.dumps(self._done))
        return self._done[name]

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def clear(self) -> None:
        """Removes the file, when the stage's own results hold all of it."""
        self._path.unlink(missing_ok=True)


def parser(about: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that the suite gives to every stage."""
    found = report.parser(about)
    found.add_argument("--out", metavar="DIR", type=Path, default=Path(), help="where other stages left their results")
    found.add_argument("--device", default="cuda", help='"cuda"; "cpu" for a dry run with tiny models')
    found.add_argument("--limit-s", type=float, default=500, help="seconds after which the stage stops by itself")
    return found


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the arguments, with the `scale` of the models that goes with the device."""
    given = parser.parse_args()
    given.scale = "tiny" if given.device == "cpu" else "full"
    return given


def target(model: Model, given: argparse.Namespace, free: bool = False, **options: Any) -> Target:
    """Returns a benchmark model as what a bench opens, at its memory budget."""
    return Target(
        name=model.target,
        arguments={"scale": given.scale, "free": free},
        device=given.device,
        options=Options(memory_budget=model.memory[given.scale], **options),
    )


def model_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names a benchmark model."""
    parser.add_argument("model", choices=tuple(MODELS), help="which benchmark model")


def unfinished(what: str, clock: Clock) -> NoReturn:
    """Says that the time limit came first, and exits accordingly."""
    print(f"{what} after {clock.elapsed_s:.0f} s: call again to go on", flush=True)
    sys.exit(UNFINISHED)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, Any]:
    """Returns a table as the summary page shows it."""
    return {"columns": list(columns), "rows": [[str(cell) for cell in row] for row in rows]}
