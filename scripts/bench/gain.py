"""The gain of tuning on the four examples under a memory limit, measured again after the search.

Each example is tuned by the command line: probes run in a child process, and the proof runs under a real memory limit.
Then the plan and the baseline run in interleaved blocks in this process, which does not know the figures of the search.
Required: no peak over the budget, and no plan that is slower than the baseline beyond noise.
"""

import importlib.util
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from autofit import devices, planfile
from autofit.core.answer import Ratio
from autofit.core.briefing import Options
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.probing.local_bench import LocalBench
from autofit.search.race import pair
from autofit.workloads.factory import as_arguments
from autofit.workloads.workload import Workload
from scripts.bench import report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("gpt", "convnet", "huggingface", "tabular")


def tune(name: str, memory: str, seconds: float) -> Path:
    """Tunes an example with the command line and returns the path of its plan file."""
    folder = Path(tempfile.mkdtemp())
    plan = folder / "autofit.yaml"
    target = f"{EXAMPLES / name}.py:make_workload"
    command = [sys.executable, "-m", "autofit", "tune", target, "-o", str(plan), "--memory", memory]
    command += ["--time", str(seconds), "--study", str(folder / "study.journal"), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return plan


def compare(workload: Workload, plan: Plan, baseline: Plan, options: Options, pairs: int) -> Ratio:
    """Returns the throughput of `plan` relative to `baseline`, from interleaved blocks."""
    logs: dict[str, list[float]] = {plan.key: [], baseline.key: []}
    with LocalBench(workload, devices.choose(), options) as bench:
        for index in range(pairs):
            for one in (plan, baseline) if index % 2 == 0 else (baseline, plan):
                outcome = bench.evaluate(one, Purpose.BLOCK)
                if outcome.measurement is None:
                    raise SystemExit(f"{one} did not run: {outcome.reason}")
                logs[one.key].append(math.log(outcome.measurement.samples_per_s))
    return pair(logs[plan.key], logs[baseline.key]).ratio()


def measure(name: str, seconds: float, pairs: int) -> dict[str, Any]:
    """Returns the figures of one example."""
    module = load(name)
    found = planfile.load(tune(name, module.MEMORY, seconds))
    workload = Workload(**as_arguments(module.make_workload(), name))
    baseline = found.baseline.plan
    options = Options(memory_budget=module.MEMORY)
    same = found.plan == baseline
    ratio = Ratio(value=1, low=1, high=1) if same else compare(workload, found.plan, baseline, options, pairs)
    peak, budget = found.proof.memory.judged_bytes, found.budget.memory_bytes
    figures: dict[str, Any] = {
        "example": name,
        "plan": dict(found.plan.values),
        "baseline": dict(baseline.values),
        "ratio": ratio.model_dump(),
        "claimed": None if found.gain is None else found.gain.model_dump(),
        "peak_bytes": peak,
        "budget_bytes": budget,
        "trials": found.counts,
        "search_s": found.duration_s,
        "ok": peak <= budget and ratio.high >= 1.0,
    }
    print(
        f"{name:12s} {ratio} of the baseline; peak {format_bytes(peak)} of {format_bytes(budget)}; "
        f"{sum(found.counts.values())} trials in {found.duration_s:.0f} s; {found.plan}",
        flush=True,
    )
    return figures


def load(name: str) -> ModuleType:
    """Imports an example from its file."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None, "the file has a loader"
    assert spec.loader is not None, "the file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--time", type=float, default=60, help="time budget of the search of each example, in seconds")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks in each comparison")
    parser.add_argument("examples", nargs="*", default=NAMES, help="the examples to run; all by default")
    given = parser.parse_args()
    cases = [measure(name, given.time, given.pairs) for name in given.examples]
    mean = math.exp(sum(math.log(case["ratio"]["value"]) for case in cases) / len(cases))
    over = sum(case["peak_bytes"] > case["budget_bytes"] for case in cases)
    slower = sum(case["ratio"]["high"] < 1.0 for case in cases)
    passed = all(case["ok"] for case in cases)
    summary = (
        f"gain: {mean:.2f}x in the geometric mean of {len(cases)} examples; {over} over budget, {slower} slower "
        f"than the baseline beyond noise: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"mean": mean, "cases": cases}, given.json, passed)


if __name__ == "__main__":
    main()
