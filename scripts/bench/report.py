"""Shared by all benchmarks: arguments, figures as JSON with device and versions, and a summary as the last line."""

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from autofit import devices
from scripts.bench import files


def parser(about: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that every benchmark takes."""
    found = argparse.ArgumentParser(
        prog=program(), description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--json", metavar="FILE", type=Path, help="write all figures to this file")
    return found


def program() -> str:
    """Returns the command that started this process, for `--help`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).name if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"


def where(name: str | None = None) -> dict[str, Any]:
    """Returns device and versions, which are stored with the figures.

    Args:
        name: the measured device; None for the best available one.

    Raises:
        UsageError: the device does not exist on this machine.
    """
    device = devices.choose(name)
    return {
        "device": device.name(),
        "type": device.type,
        "phantom": "phantom" in os.environ.get("LD_PRELOAD", ""),
        "capacity_bytes": device.capacity_bytes(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **device.versions(),
    }


def finish(
    summary: str,
    figures: dict[str, Any],
    out: Path | None,
    passed: bool,
    device: str | None = None,
    missed: int = 1,
) -> None:
    """Writes the figures, prints the summary as the last line, and exits with 0, or with `missed` if not passed."""
    if out is not None:
        record = {"where": where(device), "summary": summary, **figures}
        files.write(out, json.dumps(record, indent=1) + "\n")
    print(summary, flush=True)
    sys.exit(0 if passed else missed)


def fail(message: str, code: int) -> NoReturn:
    """Prints the message to stderr as the last line and exits."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(code)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of all values do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
