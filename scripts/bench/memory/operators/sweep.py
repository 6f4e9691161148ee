"""The sweep over all operators: the traced peak of each operator's step, compared with torch's real allocator.

Start it with `python -m scripts.bench.memory.operators --sweep`.

Each role has a process of its own: "here" runs real steps and traces with the device's own fake tensors, "stand-in"
traces with a Python that sees no device. If an operator ends its process, a new
process continues with the next operator.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from autofit.core.errors import AutofitError
from autofit.tracing.cuda import standin
from autofit.tracing.cuda.allocator_steps import Chip
from scripts.bench.memory.operators.cases import CASES
from scripts.bench.memory.operators.rig import PRECISIONS, Peaks, Subject

ROLES = ("here", "stand-in")
NAMES = tuple(f"{name} {precision}" for name in CASES for precision in PRECISIONS)
MIB = 2**20
LIMITS = ((0.01, 2 * MIB), (0.03, 4 * MIB))
"""Tolerance of allocated and of reserved peaks, as a share and in bytes. An error must exceed both to count."""
ON_DATA = "sizes depend on values, which a phantom does not have; a trace takes the largest"
KNOWN = {
    "mask-select": ON_DATA,
    "masked_select": ON_DATA,
    "nonzero": ON_DATA,
    "unique": ON_DATA,
    "masked_scatter": ON_DATA,
}
"""Operators whose error is not a defect, with the reason."""
CONVERTED_SINCE_2_13 = ("rms_norm", "rms_norm-w")
"""Operators that autocast converts since torch 2.13: a stand-in with another version is right for another device."""
ENDED = "its process ended"


def measure(path: Path, role: str) -> None:
    """Adds to `path` the figures of this process, in its role, for the operators that have none yet."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = json.loads(path.read_text(encoding="utf-8"))
    device = torch.device("cuda", 0) if role == "here" else standin.install()
    chip = Chip.of(device) if role == "here" else Chip(tuple(rows["chip"][0]), *rows["chip"][1:])
    rows["chip"] = [chip.capability, chip.multiprocessors, chip.threads]
    rows.setdefault("torch", {})[role] = torch.__version__
    for name, row in rows["operators"].items():
        if role not in row:
            row[role] = ENDED
            path.write_text(json.dumps(rows), encoding="utf-8")
            row.update(_tried(name, role, device, chip))
    path.write_text(json.dumps(rows), encoding="utf-8")


def _tried(name: str, role: str, device: torch.device, chip: Chip) -> dict[str, Any]:
    """Returns the figures of an operator: its peaks, or one line that says why there are none."""
    case, precision = name.rsplit(" ", 1)
    found: dict[str, Any] = {}
    try:
        subject = Subject.of(CASES[case], precision, device)
        if role == "here":
            found["truth"] = subject.run()
    except Exception as error:  # noqa: BLE001  # an operator that torch refuses or that a phantom does not imitate
        return {role: f"does not run: {_line(error)}"}
    try:
        return {**found, role: subject.trace(None if role == "here" else chip)}
    except AutofitError as error:
        return {**found, role: _line(error)}


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def sweep(path: Path, stand_in: str, only: list[str]) -> int:
    """Measures all operators, or some, writes the figures, prints those that are off; returns how many are wrong."""
    names = [name for name in NAMES if not only or name.rsplit(" ", 1)[0] in only]
    path.write_text(json.dumps({"operators": {name: {} for name in names}}), encoding="utf-8")
    for role, python in zip(ROLES, (sys.executable, stand_in), strict=True):
        command = [python, "-m", "scripts.bench.memory.operators.sweep", role, str(path)]
        left = len(names)
        while (
            left and subprocess.run(command, env=environment(role), stderr=subprocess.DEVNULL, check=False).returncode
        ):
            left -= 1  # each failure means that one more operator ended its process
    rows = json.loads(path.read_text(encoding="utf-8"))
    wrong = [name for name, row in rows["operators"].items() if judged(name, row, rows["torch"])]
    path.write_text(json.dumps({**rows, "wrong": wrong}, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"{len(names)} operators tried, {len(wrong)} wrong; figures in {path}")
    return len(wrong)


def environment(role: str) -> dict[str, str]:
    """Returns the environment of a process. The stand-in sees neither a phantom nor a real device."""
    hidden = {"LD_PRELOAD", "LD_LIBRARY_PATH"} if role == "stand-in" else set()
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    root = str(Path(__file__).resolve().parents[4])
    return {**kept, "PYTHONPATH": root, **({"CUDA_VISIBLE_DEVICES": ""} if role == "stand-in" else {})}


def judged(name: str, row: dict[str, Any], versions: dict[str, str]) -> list[str]:
    """Returns the roles in which the trace of an operator is off by more than the tolerance and is not a known case."""
    case = name.rsplit(" ", 1)[0]
    other = len({version.split("+")[0] for version in versions.values()}) > 1 and case in CONVERTED_SINCE_2_13
    asked = ROLES[:1] if other else ROLES
    return [] if case in KNOWN or "truth" not in row else [role for role in asked if off(row[role], row["truth"])]


def off(said: Peaks | str, truth: Peaks) -> bool:
    """Returns whether peaks are beyond `LIMITS`. An operator that cannot be traced is unknown, not wrong."""
    if isinstance(said, str):
        return False
    errors = (abs(a - b) for a, b in zip(said, truth, strict=True))
    sides = zip(errors, truth, LIMITS, strict=True)
    return any(error > share * real and error > least for error, real, (share, least) in sides)


def table(rows: dict[str, Any]) -> str:
    """Returns the operators that are off or not traced, one per line, with errors of both peaks in %."""
    lines = [f"{'operator':30}{'here':>18}{'stand-in':>18}"]
    for name, row in rows["operators"].items():
        truth = row.get("truth")
        said = [row.get(role, "") for role in ROLES]
        if truth is None or any(isinstance(each, str) or off(each, truth) for each in said):
            cells = [_cell(each, truth) for each in said]
            reasons = KNOWN.get(name.rsplit(" ", 1)[0], "")
            lines.append(f"{name:30}" + "".join(f"{cell[:60]:>18}" for cell in cells) + f"  {reasons}".rstrip())
    return "\n".join(lines)


def _cell(said: Peaks | str, truth: Peaks | None) -> str:
    if isinstance(said, str):
        return said
    return "traced" if truth is None else _errors(said, truth)


def _errors(said: Peaks, truth: Peaks) -> str:
    return " / ".join(f"{100 * (a / b - 1):+.1f}" for a, b in zip(said, truth, strict=True))


if __name__ == "__main__":
    measure(Path(sys.argv[2]), sys.argv[1])
