"""Tunes random small workloads with a random fault at a random place, in this process and by the command line.

    scripts/chaos --runs 300 --seed 0               # in the active environment or .venv
    scripts/chaos --seed 0 --only 17                # repeats one run

Checked after each run: everything that was passed in is unchanged, nothing hangs or outlives the tuner, the exit code
is allowed for the fault, and no output of users' code is in a plan, a study or the output. The exit code is 1 if a
check fails.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S
from scripts.chaos_runs.cases import ALLOWED, Case, case

ROOT = Path(__file__).resolve().parents[2]

BATCH = 12
"""Number of runs in one process: each may be affected by what the previous one left behind."""
TIME_S, HUNG_S, QUIET_S = 8.0, 120.0, 4.0
"""Seconds: time budget of a command; after which it counts as hung; that its processes have for ending."""
FOLDER = tempfile.TemporaryDirectory(prefix="autofit-chaos-")
MARK, CANARY = "AUTOFIT_CHAOS_RUN", "CHAOS_SECRET_TOKEN_5f3a"
INTERRUPTED, LATE_START_S = 130, 10.0
"""Exit code after a signal; seconds in addition to the budget for starting Python and torch twice on a busy machine."""


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a run, in which this checkout comes first."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # A separate folder for locks: parallel runs, or another tuner on this machine, would otherwise wait for each other.
    locks = tempfile.mkdtemp(dir=FOLDER.name)
    mine = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "AUTOFIT_RUNTIME_DIR": locks}
    return {**os.environ, **mine, **more}


def in_process(seed: int, device: str, cases: list[Case]) -> list[dict[str, Any]]:
    """Runs cases in one process; if a case ends it, the next cases run in a new one."""
    left, found = list(cases), list[dict[str, Any]]()
    while left:
        command = [sys.executable, "-m", "scripts.chaos_runs.in_process", device, str(seed)]
        command += [str(one.number) for one in left]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"number"')]
        found += rows
        left = left[len(rows) :]
        if left:  # the next one ended the process
            last = " | ".join(done.stderr.strip().splitlines()[-12:])
            found.append({"number": left.pop(0).number, "ended": "died", "took_s": 0.0, "wrong": [f"died: {last}"]})
    return found


def by_command(device: str, one: Case) -> dict[str, Any]:
    """Runs a case by the command line and sends its signal."""
    with tempfile.TemporaryDirectory() as name:
        folder, mark = Path(name), f"{os.getpid()}-{one.number}"
        workload = ROOT / "scripts" / "chaos_runs" / "workloads.py"
        command = [sys.executable, "-m", "autofit", "tune", f"{workload}:make_workload", "-o", "plan.yaml", "--json"]
        command += ["--device", device, "--memory", "1GiB", "--time", f"{TIME_S:.0f}s", "--study", "studies/study.db"]
        for key, value in {"device": device, **one.arguments()}.items():
            command += ["--arg", f"{key}={json.dumps(value) if not isinstance(value, str) else value}"]
        began = time.monotonic()
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                command, cwd=folder, env=environment(**{MARK: mark}), stdout=out, stderr=err, start_new_session=True
            )
            code = _ended(process, one, began)
        took_s = time.monotonic() - began
        wrong = [*_judged(one, code, took_s), *_left(mark), *_leaked(folder), *_plan(one, folder, code)]
        if wrong:
            wrong.append("stderr: " + " | ".join((folder / "err").read_text(errors="replace").splitlines()[-6:]))
        return {"number": one.number, "ended": f"exit {code}", "took_s": round(took_s, 2), "wrong": wrong}


def by_commands(device: str, cases: list[Case]) -> list[dict[str, Any]]:
    """Runs cases by the command line, one after the other."""
    return [by_command(device, one) for one in cases]


def _ended(process: "subprocess.Popen[bytes]", one: Case, began: float) -> int | None:
    """Sends a command its signal and waits for its end; returns None if it hung and was killed."""
    try:
        if one.signal:
            try:
                process.wait(one.after_s)
            except subprocess.TimeoutExpired:
                for sent in range(2 if one.signal == "SIGINT twice" else 1):
                    time.sleep(0.3 * sent)
                    process.send_signal(getattr(signal, one.signal.partition(" ")[0]))
        return process.wait(HUNG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _judged(one: Case, code: int | None, took_s: float) -> Iterator[str]:
    if code is None:
        yield f"hung for {HUNG_S:.0f} s"
        return
    allowed = {*ALLOWED[one.fault], 7}
    if one.signal:
        allowed.add(-signal.SIGKILL if one.signal == "SIGKILL" else INTERRUPTED)
        if one.signal == "SIGINT twice":
            allowed.add(-signal.SIGINT)
        if one.signal == "SIGTERM":
            allowed.add(-signal.SIGTERM)  # before the command line installed its handler
    if code not in allowed:
        yield f"exit code {code}, expected one of {sorted(allowed)}"
    if took_s > (1 + OVERTIME_RATIO) * TIME_S + OVERTIME_S + LATE_START_S:
        yield f"took {took_s:.1f} s of {TIME_S:.0f} s"


def _left(mark: str) -> Iterator[str]:
    """Yields the processes of a run that still exist."""
    deadline = time.monotonic() + QUIET_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid, name in found:
        yield f"left behind: {name}"
        os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> list[tuple[int, str]]:
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
            except OSError:
                continue
    return [(pid, name) for pid, name in found if name]  # a process without a command line has ended


def _leaked(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".log" and CANARY.encode() in path.read_bytes():
            yield f"what the workload printed is in {path.name}"


def _plan(one: Case, folder: Path, code: int | None) -> Iterator[str]:
    path = folder / "plan.yaml"
    at_the_end = bool(one.signal) and path.exists()  # the signal came after the end of the search
    if (code == 0) != path.exists() and not at_the_end:
        yield f"exit code {code} and {'a' if path.exists() else 'no'} plan file"
    if path.exists():
        shown = [sys.executable, "-m", "autofit", "show", str(path)]
        if subprocess.run(shown, env=environment(), capture_output=True, check=False).returncode:
            yield "the plan file cannot be read"


def main() -> int:
    """Runs the cases that the arguments select; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel runs, which slow each other down")
    parser.add_argument("--device", default="cpu", help="device to tune for, such as a phantom GPU's")
    parser.add_argument("--only", type=int, action="append", help="number of a run; may be repeated")
    parser.add_argument("--json", type=Path, help="write all runs to this file")
    given = parser.parse_args()
    cases = [case(given.seed, number) for number in given.only or range(given.runs)]
    inside = [one for one in cases if one.by == "process"]
    batches = [inside[start : start + BATCH] for start in range(0, len(inside), BATCH)]
    rows, described = list[dict[str, Any]](), {one.number: one.description() for one in cases}
    with ThreadPoolExecutor(given.jobs) as pool:
        jobs = [pool.submit(in_process, given.seed, given.device, batch) for batch in batches]
        jobs += [pool.submit(by_commands, given.device, [one]) for one in cases if one.by == "command"]
        for job in jobs:
            for row in job.result():
                rows.append(row)
                for text in row["wrong"]:
                    print(f"{described[row['number']]}: {text}", flush=True)
    bad = sum(bool(row["wrong"]) for row in rows)
    ends = ", ".join(f"{count} {end}" for end, count in Counter(row["ended"] for row in rows).most_common())
    slowest = max((row["took_s"] for row in rows), default=0)
    print(f"{len(rows)} runs, {bad} with a finding; ended: {ends}; the slowest took {slowest} s")
    if given.json is not None:
        given.json.write_text(json.dumps({"seed": given.seed, "runs": rows}, indent=1) + "\n")
    return 1 if bad or len(rows) != len(cases) else 0


if __name__ == "__main__":
    sys.exit(main())
