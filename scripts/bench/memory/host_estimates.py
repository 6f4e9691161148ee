"""Compares memory estimates from traces with measured peaks of live tensors, on a CPU.

Each example is opened as in a search. Its baseline runs first and corrects the estimates. Then plans are drawn at
random over all knobs and micro batch sizes, and the memory of each is estimated before it runs. Required: a median
error of at most 2 %, and no peak outside its bounds.
"""

import random
from statistics import median
from time import perf_counter
from typing import Any

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.measurement import Measurement
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators import Traced
from autofit.probing.local_bench import LocalBench
from autofit.workloads.factory import as_arguments
from autofit.workloads.workload import Workload
from scripts.bench import report
from scripts.bench.gain import EXAMPLES, NAMES, load

REQUIRED_RATIO = 0.02


def measure(name: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Returns estimated and measured peaks of `count` plans of an example."""
    workload = Workload(**as_arguments(load(name).make_workload(), str(EXAMPLES / name)))
    found = []
    with LocalBench(workload, devices.choose("cpu"), Options(memory_budget="4GiB", seed=seed)) as bench:
        account, space = bench.briefing.account, SearchSpace(bench.briefing.space)
        assert account is not None, "the memory of a CPU can be estimated"
        estimator = Traced(bench.trace, account, bench.briefing.budget.memory_bytes)
        estimator.refine(space.baseline, [space.at(space.baseline.combination, size) for size in space.sizes])
        outcome = bench.evaluate(space.baseline, Purpose.PROBE)
        estimator.tell(Trial(number=0, plan=space.baseline, purpose=Purpose.PROBE, outcome=outcome))
        for plan in drawn(space, count, seed):
            began = perf_counter()
            estimator.refine(plan)
            seconds, estimate = perf_counter() - began, estimator.estimate(plan)
            measured = measurement(bench.evaluate(plan, Purpose.PROBE))
            if estimate is None or measured is None:
                raise SystemExit(f"{name}: {plan} was not {'measured' if estimate else 'estimated'}")
            peak = measured.memory.judged_bytes
            found.append({
                "example": name, "plan": dict(plan.values), "estimated_bytes": estimate.value_bytes,
                "measured_bytes": peak, "error_ratio": estimate.value_bytes / peak - 1, "seconds": seconds,
                "inside_bounds": (estimate.lower_bytes or 0) <= peak <= (estimate.upper_bytes or peak),
            })  # fmt: skip
    return found


def drawn(space: SearchSpace, count: int, seed: int) -> list[Plan]:
    """Returns different random plans with micro batches of at most 64 samples, without the baseline."""
    sizes = [size for size in space.sizes if size <= 64]
    plans = [space.at(combination, size) for combination in space.combinations() for size in sizes]
    plans = [plan for plan in plans if plan != space.baseline]
    return random.Random(seed).sample(plans, min(count, len(plans)))


def measurement(outcome: Outcome) -> Measurement | None:
    """Returns the measurement of a probe, or None if it failed."""
    return outcome.measurement if outcome.measured else None


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--plans", type=int, default=12, help="number of plans of each example (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("examples", nargs="*", default=NAMES, help="the examples to run; all by default")
    given = parser.parse_args()
    cases = []
    for name in given.examples:
        some = measure(name, given.plans, given.seed)
        worst = max(some, key=lambda case: abs(case["error_ratio"]))
        middle = median(abs(case["error_ratio"]) for case in some)
        peaks = [case["measured_bytes"] for case in some]
        print(
            f"{name:12s} {len(some)} plans of {format_bytes(min(peaks))} to {format_bytes(max(peaks))}: median error "
            f"{middle:.2%}, worst {worst['error_ratio']:+.2%} ({worst['plan']})",
            flush=True,
        )
        cases += some
    errors = sorted(abs(case["error_ratio"]) for case in cases)
    outside = sum(not case["inside_bounds"] for case in cases)
    passed = median(errors) <= REQUIRED_RATIO and outside == 0
    summary = (
        f"host_estimates: {len(cases)} plans, median error {median(errors):.2%}, worst {errors[-1]:.2%}, "
        f"{outside} outside their bounds, {median(case['seconds'] for case in cases):.2f} s for one estimate: "
        f"{'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"cases": cases}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
