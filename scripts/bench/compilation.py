"""Whether a search with compilation finds a plan that is as fast as what can be found by hand, compile time included.

Each example is tuned in this process with compilation in the space. Then three plans run in interleaved blocks: the
proven plan, the best plan of the search that does not compile, and the baseline with the whole model compiled, which
the search need not have tried. The time to compile is that of a cold run, and is amortised over the planned steps.
Required: the proven plan is at least as fast as the best of the others beyond noise, and the search ends in its time.
"""

import math
import time
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.trial import Purpose
from autofit.fit import Fit
from autofit.probing.compile_cache import private_cache
from autofit.probing.local_bench import LocalBench
from autofit.workloads.factory import as_arguments
from autofit.workloads.workload import Workload
from scripts.bench import report
from scripts.bench.gain import load

NAMES = ("gpt", "convnet", "tabular")
KNOB = "compile"


def uncompiled(fit: Fit) -> Plan:
    """Returns the fastest plan of the search that does not compile."""
    plans = [(fit.answer.rate_per_s or 0.0, fit.plan), (fit.baseline.rate_per_s or 0.0, fit.baseline.plan)]
    plans += [(each.rate_per_s or 0.0, each.plan) for each in fit.alternatives]
    return max((one for one in plans if one[1].values.get(KNOB, "off") == "off"), key=lambda one: one[0])[1]


def cold_s(bench: LocalBench, plan: Plan) -> float:
    """Returns the warm-up cost of a plan that starts cold, in seconds; infinity if it cannot be compiled."""
    if plan.values.get(KNOB, "off") == "off":
        return 0.0
    outcome = bench.evaluate(plan, Purpose.PROBE)
    return math.inf if outcome.measurement is None else outcome.measurement.startup_s or 0.0


def rates(bench: LocalBench, plans: Sequence[Plan], rounds: int) -> list[list[float]]:
    """Returns the samples per second of each plan in each round of interleaved blocks."""
    found: list[list[float]] = [[] for _ in plans]
    for number in range(rounds):
        for place in range(len(plans)) if number % 2 == 0 else reversed(range(len(plans))):
            found[place].append(_rate(bench.evaluate(plans[place], Purpose.BLOCK)))
    return found


def _rate(outcome: Outcome) -> float:
    return 0.0 if outcome.measurement is None else outcome.measurement.samples_per_s


def amortised(rates_per_s: Sequence[float], warm_up_s: float, samples: int) -> list[float]:
    """Returns the samples per second of a whole training, its warm-up included."""
    return [samples / (samples / rate + warm_up_s) if rate and warm_up_s < math.inf else 0.0 for rate in rates_per_s]


def compared(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Returns the ratio of ours to theirs in paired rounds, and its upper 95 % bound; infinity if they did not run."""
    if not all(theirs):
        return math.inf, math.inf
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    half = DEVIATIONS_95 * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs)), math.exp(fmean(logs) + half)


def measure(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Returns the figures of one example."""
    arguments = as_arguments(load(name).make_workload(), name)
    began = time.monotonic()
    fit = autofit.tune(**arguments, time_budget=seconds, study=":memory:", progress=False)
    took_s = time.monotonic() - began
    samples = fit.answer.objective.planned_samples
    if samples is None:
        raise SystemExit(f"{name}: compilation is not in the space")
    plans = [fit.plan, uncompiled(fit), fit.baseline.plan.replace(**{KNOB: "default"})]
    with private_cache(), LocalBench(Workload(**arguments), devices.choose("cpu"), Options()) as bench:
        warm_ups = [cold_s(bench, plan) for plan in plans]
        steady = rates(bench, plans, rounds)
    whole = [amortised(each, warm_up, samples) for each, warm_up in zip(steady, warm_ups, strict=True)]
    ratios = [compared(whole[0], each) for each in whole[1:]]
    in_time = took_s <= (1 + OVERTIME_RATIO) * seconds + OVERTIME_S
    figures: dict[str, Any] = {
        "example": name,
        "plans": [dict(plan.values) for plan in plans],
        "warm_up_s": [None if math.isinf(each) else each for each in warm_ups],
        "steady_samples_per_s": [fmean(each) for each in steady],
        "whole_samples_per_s": [fmean(each) for each in whole],
        "search_s": took_s,
        "ok": in_time and all(upper >= 1.0 for _, upper in ratios),
    }
    shown = ", ".join("not compiled" if math.isinf(ratio) else f"{ratio:.2f}x" for ratio, _ in ratios)
    print(
        f"{name:10s} proven {fit.plan}: {shown} of (best uncompiled, compiled baseline), which compiles in "
        f"{warm_ups[2]:.0f} s; search {took_s:.0f} of {seconds:.0f} s, {fit.answer.counts}",
        flush=True,
    )
    return figures


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--time", type=float, default=120, help="time budget of the search of each example, in seconds")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of interleaved blocks")
    parser.add_argument("examples", nargs="*", default=NAMES, help="the examples to run; all by default")
    given = parser.parse_args()
    cases = [measure(name, given.time, given.rounds) for name in given.examples]
    passed = all(case["ok"] for case in cases)
    summary = (
        f"compilation: {sum(case['ok'] for case in cases)} of {len(cases)} examples: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"cases": cases}, given.json, passed)


if __name__ == "__main__":
    main()
