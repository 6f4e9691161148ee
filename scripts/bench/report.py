"""What every benchmark shares: figures as JSON with device and versions, a percentile, a one-line summary last."""

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
    found.add_argument("--json", metavar="FILE", type=Path, help="write all figures here")
    return found


def program() -> str:
    """Returns the command that runs the module that was started, as `--help` shows it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).name if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"


def where(name: str | None = None) -> dict[str, Any]:
    """Returns device and versions, to stand beside the figures.

    Args:
        name: the device that was measured; None for the best there is.

    Raises:
        UsageError: there is no such device here.
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
    """Writes the figures, prints the summary as the last line, exits with `missed` when a figure was missed."""
    if out is not None:
        record = {"where": where(device), "summary": summary, **figures}
        files.write(out, json.dumps(record, indent=1) + "\n")
    print(summary, flush=True)
    sys.exit(0 if passed else missed)


def fail(message: str, code: int) -> NoReturn:
    """Says in one line what is wrong, as the last line, and exits."""
    print(message, file=sys.stderr, flush=True)
    sys.exit(code)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of all do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
