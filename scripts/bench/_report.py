"""What every benchmark shares: its figures as JSON with device and versions, and a one-line summary last."""

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from autofit import devices


def parser(about: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments that every benchmark takes."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", metavar="FILE", type=Path, help="write all figures here")
    return found


def where() -> dict[str, Any]:
    """Returns device and versions, to stand beside the figures."""
    device = devices.choose()
    return {
        "device": device.name(),
        "type": device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def finish(summary: str, figures: dict[str, Any], out: Path | None, passed: bool) -> None:
    """Writes the figures, prints the summary as the last line, exits 1 when a required figure was missed."""
    if out is not None:
        out.write_text(json.dumps({"where": where(), **figures}, indent=1) + "\n", encoding="utf-8")
    print(summary, flush=True)
    sys.exit(0 if passed else 1)
