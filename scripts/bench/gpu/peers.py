"""Compares batch-size finders on the same model under the same memory limit.

Each finder runs in its own process (`finders.py`) on the model with a free batch size. Its result is then proven by
autofit's bench at the same limit, and all proven plans run in interleaved blocks. Packages that are not installed are
reported. The report says, for each finder, whether it ever ran its own result, whether the result runs, the throughput
relative to autofit's plan, and the out-of-memory errors, steps and seconds of the search.
"""

import argparse
import json
import math
import subprocess
import sys
from functools import partial
from statistics import median
from typing import Any

from autofit.core.answer import Ratio
from autofit.core.budget import Clock
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.probing.remote.bench import RemoteBench
from autofit.search.race import pair
from scripts.bench.gpu import stage
from scripts.bench.gpu.blocks import interleaved
from scripts.bench.gpu.finders import FINDERS, OURS
from scripts.bench.gpu.models import MODELS
from scripts.bench.gpu.processes import die_with_parent

SHARE = 0.3
"""Share of the time of the stage that one finder may take."""


def find(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of a finder and its cost, or the reason why it returned nothing."""
    if name in FINDERS and not FINDERS[name].installed:
        return {"error": "not installed"}
    seconds, answer = SHARE * given.limit_s, given.out / f"peers-{given.model}.{name}.part.json"
    command = [sys.executable, "-m", "scripts.bench.gpu.finders", given.model, name, "--device", given.device]
    command += ["--limit-s", str(0.7 * seconds), "--json", str(answer)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, preexec_fn=die_with_parent
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {seconds:.0f} s"}
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    found = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink()
    return dict(found)


def compare(given: argparse.Namespace, found: dict[str, dict[str, Any]], clock: Clock) -> None:
    """Proves each result, runs all proven plans in interleaved blocks, and adds the results to `found`."""
    with RemoteBench(stage.target(MODELS[given.model], given, free=True)) as bench:
        baseline = bench.briefing.space.baseline
        plans = {name: Plan(values={**baseline.values, **one["plan"]}) for name, one in found.items() if "plan" in one}
        proven: dict[str, Plan] = {}
        for plan in dict.fromkeys([baseline, *plans.values()]):
            outcome = bench.evaluate(plan, Purpose.PROOF)
            for name, one in found.items():
                if plans.get(name) == plan:
                    one["runs"] = outcome.measured
                    one["proof"] = f"{outcome.status.value}{': ' if outcome.reason else ''}{outcome.reason}"
                    one["peak_bytes"] = outcome.measurement.memory.judged_bytes if outcome.measurement else None
            if outcome.measured:
                proven[plan.key] = plan
        logs = interleaved(bench.evaluate, proven, given.pairs, clock, given.limit_s)
    ours = plans["autofit"].key if "autofit" in plans else None
    for name, plan in plans.items():
        if len(logs.get(plan.key, ())) < 2:
            continue
        found[name]["samples_per_s"] = math.exp(median(logs[plan.key]))
        if ours in logs:
            same = plan.key == ours
            ratio = Ratio(value=1, low=1, high=1) if same else pair(logs[ours], logs[plan.key]).ratio()
            found[name]["autofit_over_it"] = ratio.model_dump()


def rows(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the comparison as a table for the summary page."""
    columns = ["finder", "returned", "ran it", "proof", "peak", "samples/s", "autofit over it", "OOMs", "steps", "s"]
    lines: list[list[object]] = []
    for name, one in found.items():
        if "error" in one:
            lines.append([name, one["error"], *[""] * (len(columns) - 2)])
            continue
        ratio, speed = one.get("autofit_over_it"), one.get("samples_per_s")
        lines.append([
            name, Plan(values=one["plan"]), "yes" if one["returned_ran"] else "no", one.get("proof", ""),
            format_bytes(one.get("peak_bytes")), f"{speed:.4g}" if speed else "",
            f"{ratio['value']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "", one["ooms"],
            one["steps"], f"{one['seconds']:.0f}",
        ])  # fmt: skip
    return stage.table(columns, lines)


def summarize(name: str, found: dict[str, dict[str, Any]]) -> str:
    """Returns the comparison as one line."""
    ours = found["autofit"]
    if "error" in ours:
        return f"peers {name}: autofit returned nothing: {ours['error']}"
    peers = {peer: one for peer, one in found.items() if peer in FINDERS}
    ratios = {peer: one["autofit_over_it"]["value"] for peer, one in peers.items() if "autofit_over_it" in one}
    shown = [f"{ratios[peer]:.2f}x {peer}" for peer in sorted(ratios, key=lambda p: ratios[p])]
    broken = [peer for peer, one in peers.items() if one.get("runs") is False]
    failures = ", ".join(f"{peer} {one['ooms']}" for peer, one in {"autofit": ours, **peers}.items() if "ooms" in one)
    absent = [peer for peer, one in peers.items() if one.get("error") == "not installed"]
    return (
        f"peers {name}: autofit's plan is {', '.join(shown) or 'compared with none'}; out of memory: {failures}"
        + (f"; result does not run: {', '.join(broken)}" if broken else "")
        + (f"; not installed: {', '.join(absent)}" if absent else "")
    )


def run(given: argparse.Namespace, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether no peer's plan is faster beyond noise."""
    parts = stage.Parts(given.out / f"peers-{given.model}.part.json")
    found: dict[str, dict[str, Any]] = {}
    for name in (*OURS, *FINDERS):
        if name not in parts and clock.elapsed_s > (1 - SHARE) * given.limit_s:
            stage.unfinished(f"peers {given.model}: {len(found)} of {len(OURS) + len(FINDERS)} finders", clock)
        found[name] = parts.get(name, partial(find, name, given))
        print(f"{name}: {found[name]}", flush=True)
    compare(given, found, clock)
    slower = [n for n, one in found.items() if n in FINDERS and one.get("autofit_over_it", {"high": 1})["high"] < 1]
    parts.clear()
    figures = {"model": given.model, "finders": found, "table": rows(found)}
    return summarize(given.model, found), figures, "error" not in found["autofit"] and not slower


def main() -> None:
    parser = stage.parser(__doc__ or "")
    stage.model_argument(parser)
    parser.add_argument("--pairs", type=int, default=12, help="number of rounds of blocks in the comparison")
    given = stage.parse(parser)
    stage.conclude(f"peers {given.model}", given, lambda: run(given, Clock()))


if __name__ == "__main__":
    main()
