"""Checks before any stage, in its own process: whether all modules can be imported, and which device is present."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

NEEDED = ("torch", "optuna", "pydantic", "tqdm", "yaml", "pytest", "autofit.search.search", "autofit.api")


def machine(device: str, modules: Sequence[str] = ()) -> dict[str, Any] | str:
    """Returns device and versions, or one line that says why nothing can run here.

    Args:
        device: value of `--device`.
        modules: modules of the stages, which are imported too.
    """
    command = [sys.executable, "-m", "scripts.bench.gpu.preflight", device, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode == 0:
        return dict(json.loads(lines[-1]))
    return lines[-1] if lines else f"the check of the device ended with code {done.returncode}"


def lacking(modules: Iterable[str]) -> dict[str, str]:
    """Returns the missing modules, each with Python's message and the module that imported it first."""
    found: dict[str, str] = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            reason = str(error) if name == error.name else f"{error}, imported by {name}"
            found.setdefault(error.name or name, " ".join(reason.split()))
    return found


def main() -> None:
    device, *modules = sys.argv[1:]
    if missing := lacking([*NEEDED, *modules]):
        reasons = "; ".join(f"{name} ({reason})" for name, reason in missing.items())
        sys.exit(f"cannot import with {sys.executable}: {reasons}. --help lists the required packages.")
    report, errors = importlib.import_module("scripts.bench.report"), importlib.import_module("autofit.core.errors")
    try:
        print(json.dumps(report.where(device)))
    except errors.UsageError as error:
        sys.exit(f"{error} To try the suite without a GPU: --device cpu.")


if __name__ == "__main__":
    main()
