"""Time of `tune()` on an unchanged workload whose study is at hand, as a share of the time of the first `tune()`.

Each example is tuned in this process with a new study, then several times more with the same study. Each repetition
must run one proof and nothing else, and take less than 5 % of the time of the first call. On a machine with other load
a proof may contradict the earlier trials; the search then begins again, and the limit is missed.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import autofit
from autofit.fit import Fit
from autofit.workloads.factory import as_arguments
from scripts.bench import report
from scripts.bench.gain import load

NAMES = ("gpt", "convnet")
MOST_RATIO = 0.05
"""Limit on the time of a repetition, as a share of the time of the first call."""


def timed(name: str, study: Path) -> tuple[Fit, float]:
    """Tunes an example and returns the result and the seconds that it took."""
    module = load(name)
    arguments = as_arguments(module.make_workload(), name)
    began_s = time.perf_counter()
    fit = autofit.tune(**arguments, memory_budget=module.MEMORY, study=study, progress=False)
    return fit, time.perf_counter() - began_s


def measure(name: str, repetitions: int) -> dict[str, Any]:
    """Returns the figures of one example."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study.journal"
        first, first_s = timed(name, study)
        again = [timed(name, study) for _ in range(repetitions)]
    seconds = [spent_s for _, spent_s in again]
    ratio = median(seconds) / first_s
    alone = all(fit.answer.counts == {"measured": 1} and fit.plan == first.plan for fit, _ in again)
    print(f"{name:12s} first {first_s:.1f} s, again {median(seconds):.2f} s: {ratio:.1%}", flush=True)
    return {
        "example": name,
        "first_s": first_s,
        "again_s": seconds,
        "ratio": ratio,
        "one_proof": alone,
        "ok": alone and ratio < MOST_RATIO,
    }


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=5, help="number of calls after the first")
    parser.add_argument("examples", nargs="*", default=NAMES, help="the examples to run; gpt and convnet by default")
    given = parser.parse_args()
    cases = [measure(name, given.repetitions) for name in given.examples]
    passed = all(case["ok"] for case in cases)
    ratios = ", ".join(f"{case['example']} {case['ratio']:.1%}" for case in cases)
    summary = f"tune again: {ratios} of the first call, at most {MOST_RATIO:.0%}: {'ok' if passed else 'MISSED'}"
    report.finish(summary, {"cases": cases}, given.json, passed)


if __name__ == "__main__":
    main()
