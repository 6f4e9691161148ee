"""Runs `tests/cuda` on this machine: the tests marked `real_gpu`, or those that also pass on a phantom GPU.

The output of pytest is kept in DIR/tests-KIND.txt, and results are counted from it. Tests that finished therefore count
even if the time limit interrupts pytest. The next call starts from the beginning.
"""

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from scripts.bench import report
from scripts.bench.gpu import stage
from scripts.bench.gpu.processes import ROOT, die_with_parent
from scripts.bench.gpu.suite import UNFINISHED

EXPRESSIONS = {"real": "real_gpu", "shared": "not real_gpu"}
GRACE_S = 10.0
RESULT = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
FAILED = ("FAILED", "ERROR")


def run_pytest(folder: Path, expression: str, output: Path, limit_s: float) -> int | None:
    """Returns pytest's exit code, or None if the time limit was reached."""
    command = [sys.executable, "-m", "pytest", str(folder), "-m", expression, "-v"]
    with (
        output.open("w", encoding="utf-8") as sink,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, found at import: takes no lock
        ) as process,
    ):
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return None


def results(text: str) -> dict[str, str]:
    """Returns the result of each test in pytest's verbose output; after a failed teardown, that of the teardown."""
    return {name: result for name, result in RESULT.findall(text)}


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("kind", choices=tuple(EXPRESSIONS), help="which tests")
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "cuda", help="where they are")
    given = stage.parse(parser)
    output = given.out.resolve() / f"tests-{given.kind}.txt"
    code = run_pytest(given.folder.resolve(), EXPRESSIONS[given.kind], output, given.limit_s)
    text = output.read_text(encoding="utf-8", errors="replace")
    found = results(text)
    if not found and code is not None:
        last = (text.strip().splitlines() or ["no output"])[-1]
        report.fail(f"tests-{given.kind}: no test ran in {given.folder} (pytest's exit code {code}): {last}", 3)
    counts = Counter(result.lower() for result in found.values())
    failed = [name for name, result in found.items() if result in FAILED]
    shown = ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "no test done"
    ended = "" if code is not None else f"; interrupted by the limit of {given.limit_s:.0f} s"
    figures = {
        "counts": counts, "failed": failed, "ended_by_limit": code is None,
        "table": stage.table(["failed"], [[name] for name in failed]),
    }  # fmt: skip
    passed = code == 0 and counts["passed"] > 0
    verdict = "ok" if passed else "unfinished" if code is None else "MISSED"
    missed = UNFINISHED if code is None else 1
    report.finish(f"tests-{given.kind}: {shown}{ended}: {verdict}", figures, given.json, passed, given.device, missed)


if __name__ == "__main__":
    main()
