"""Tunes examples/gpt.py by the command line in a pseudo-terminal, and keeps the records of the run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.readme import screen, transcript
from scripts.readme.records import EVENTS, PLAN, REPORT, KeptEvent, Records, keep

ROOT = Path(__file__).resolve().parents[2]
TUNE = f"tune examples/gpt.py:make_workload -o {PLAN} --device cpu --memory 72MiB --time 2min"
"""What `scripts/demo` runs."""


class UnusableRunError(Exception):
    """A run failed, or cannot be shown. The message says why."""


def record() -> Records:
    """Runs the search, and keeps its records in place of earlier ones.

    Raises:
        UnusableRunError: the run failed, was disturbed by another process, or names a folder of this machine.
    """
    with TemporaryDirectory(prefix="autofit-readme-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm-256color"}
        for variable in ("COLUMNS", "NO_COLOR"):
            environment.pop(variable, None)
        logged = [sys.executable, "-m", "scripts.readme.logged_tune", EVENTS, *TUNE.split()]
        code, written = screen.run(logged, folder, environment, transcript.COLUMNS)
        shown = screen.lines_of(written)
        if code:
            raise UnusableRunError("\n".join([*shown, f"the run ended with exit code {code}; expected 0"]))
        report = [sys.executable, "-m", "autofit", "report", PLAN, "-o", REPORT]
        subprocess.run(report, cwd=folder, env=environment, check=True)
        found = Records.read(folder)
        _check(found, shown)
        _make_portable(folder)
        keep(folder)
    return Records.read()


def _check(found: Records, shown: list[str]) -> None:
    """Refuses records of a disturbed run, and records that do not show the run as it was on the terminal.

    Raises:
        UnusableRunError: as of `record`.
    """
    if disturbed := [kept.text for kept in found.events if _is_disturbance(kept)]:
        raise UnusableRunError(f"another process disturbed the run ({disturbed[0]}); run it when nothing else does")
    if missing := [line for line in transcript.answer(found) if line not in shown]:
        raise UnusableRunError("\n".join(["the answer is not what the terminal showed; it lacks", *missing]))


def _make_portable(folder: Path) -> None:
    """Makes paths in the records relative to the folder of the run, which is where a reader runs the command.

    Raises:
        UnusableRunError: another path of this machine is in the records.
    """
    for name in (PLAN, REPORT, EVENTS):
        path = folder / name
        text = path.read_text(encoding="utf-8").replace(f"{folder.resolve()}/", "")
        if private := [place for place in (str(folder), str(ROOT), str(Path.home())) if place in text]:
            raise UnusableRunError(f"{name} has the path {private[0]}; expected no path of this machine")
        path.write_text(text, encoding="utf-8")


def _is_disturbance(kept: KeptEvent) -> bool:
    """Returns whether an event tells that the device was in use, or that a run made no progress for long."""
    return kept.kind == "waiting" or kept.text.startswith("waiting")
