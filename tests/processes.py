"""What fresh processes say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_by_two_processes(code: str) -> set[str]:
    """Returns what `code` prints in two processes whose sets have other orders: one text where that plays no part."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
