"""Tuning in a child process, for a script whose own process must not run a training step before its trainer is made."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from autofit.api import load
from autofit.core import errors
from autofit.fit import Fit


def tune_in_child(target: str, *flags: str) -> Fit:
    """Runs `autofit tune` in a child process and returns its result. Progress goes to the error stream.

    The study keeps what was measured, so that a second call for an unchanged workload is answered without a search.

    Args:
        target: where the workload is made: "train.py:make_workload" or "package.module:make_workload". A script that
            calls this function names itself, and does so below `if __name__ == "__main__":`.
        flags: flags of `autofit tune` with their values, such as "--memory", "20GiB".

    Raises:
        AutofitError: the error that ended the search, of the class that `autofit.tune` raises.
        KeyboardInterrupt: the search was interrupted.
    """
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.yaml"
        command = [sys.executable, "-m", "autofit", "tune", target, *flags, "--json", "-o", str(plan)]
        ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        if ran.returncode:
            _raise(ran.stdout, ran.returncode)
        return load(plan)


def _raise(document: str, code: int) -> NoReturn:
    """Raises the error of a failed command, which its JSON document describes."""
    try:
        error = json.loads(document)["error"]
    except (ValueError, KeyError, TypeError):
        raise errors.AutofitError(
            f"`autofit tune` ended with exit code {code} and without a result; expected a JSON document. See its error "
            "output"
        ) from None
    if error["type"] == "Interrupted":
        raise KeyboardInterrupt(error["message"])
    kind = getattr(errors, error["type"], errors.AutofitError)
    if issubclass(kind, errors.UserCodeError):
        raise kind(error["message"], error["traceback"])
    if issubclass(kind, errors.Untraceable):
        raise errors.UsageError(error["message"])
    raise kind(error["message"])
