"""Judges the results of finders: proofs under the memory limit, a race of the proven plans, and the verdict."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofit import devices
from autofit.core.answer import Ratio
from autofit.core.briefing import Options
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.race import pair
from scripts.bench import files
from scripts.bench.peers import models
from scripts.bench.peers.finding import OURS, PEERS, Found, speed_of

BATCH_ONLY = PEERS[:-1]


def prove(model: str, plans: Sequence[Plan], path: Path) -> dict[str, dict[str, Any]]:
    """Returns, by plan, whether it runs in a fresh process under the limit, and how fast.

    The limit decides: a plan that ran under it counts as run even if its recorded allocations exceed the budget.
    Earlier proofs are read from the file `path`.
    """
    known = files.read(path) or {}
    if all(plan.key in known for plan in plans):
        return known
    options = Options(memory_budget=models.budget_bytes(model))
    with RemoteBench(Target(f"{models.__name__}:{model}", device="cpu", options=options)) as bench:
        for plan in plans:
            if plan.key not in known:
                known[plan.key] = _proof(bench.evaluate(plan, Purpose.PROOF))
                files.write(path, json.dumps(known, indent=1) + "\n")
    return known


def _proof(outcome: Outcome) -> dict[str, Any]:
    seen = outcome.measurement
    return {
        "ran": outcome.measured or (outcome.status is Status.OVER_BUDGET and seen is not None),
        "status": outcome.status.value,
        "reason": outcome.reason,
        "samples_per_s": speed_of(outcome) if outcome.measured else None,
        "peak_bytes": None if seen is None else seen.memory.judged_bytes,
    }


def race(model: str, plans: Sequence[Plan], pairs: int) -> dict[str, list[float]]:
    """Returns, by plan, the log throughput of each block; rounds alternate between forward and backward order."""
    logs: dict[str, list[float]] = {plan.key: [] for plan in plans}
    options = Options(memory_budget=models.budget_bytes(model))
    with LocalBench(models.MODELS[model][0](), devices.choose("cpu"), options) as bench:
        for number in range(pairs if len(plans) > 1 else 1):
            for plan in plans if number % 2 == 0 else plans[::-1]:
                measured = bench.evaluate(plan, Purpose.BLOCK).measurement
                if measured is None:
                    raise SystemExit(f"peers: {plan} of {model} ran in its proof but failed in a block")
                logs[plan.key].append(math.log(measured.samples_per_s))
    return logs


def judge(model: str, found: Mapping[str, Found], pairs: int, folder: Path) -> dict[str, Any]:
    """Returns the finders of a model with the proofs of their results and autofit's throughput relative to theirs."""
    plans = {finder: Plan(values=one["plan"]) for finder, one in found.items() if one["plan"] is not None}
    proven = prove(model, list(dict.fromkeys(plans.values())), folder / f"{model}, proofs.json")
    proofs = {finder: proven[plan.key] for finder, plan in plans.items()}
    sound = {finder: plan for finder, plan in plans.items() if proofs[finder]["ran"]}
    logs = race(model, list(dict.fromkeys(sound.values())), pairs) if sound else {}
    ours = sound.get(OURS)
    rows = {}
    for finder, one in found.items():
        row = {**one, "proof": proofs.get(finder, {"ran": False, "reason": one["failed"]})}
        if finder in sound:
            mine = logs[sound[finder].key]
            row["raced_samples_per_s"] = math.exp(sum(mine) / len(mine))
            if ours is not None and finder != OURS:
                row["autofit_over_it"] = _ratio(logs, ours, sound[finder]).model_dump()
        rows[finder] = row
    return {"model": model, "finders": rows, **verdict(rows)}


def _ratio(logs: Mapping[str, Sequence[float]], ours: Plan, theirs: Plan) -> Ratio:
    same = Ratio(value=1, low=1, high=1, pairs=len(logs[ours.key]))
    return same if ours == theirs else pair(logs[ours.key], logs[theirs.key]).ratio()


def verdict(rows: Mapping[str, Found]) -> dict[str, Any]:
    """Returns the best proven peer, the best one that changes only the batch, and the results of the two tests.

    A model on which no plan of a peer was proven has no best peer, and passes if autofit's plan was proven.
    """
    peers = {finder: row for finder, row in rows.items() if finder != OURS}
    ratios = {finder: row["autofit_over_it"] for finder, row in peers.items() if "autofit_over_it" in row}
    ours = rows.get(OURS)
    proven = ours is not None and ours["proof"]["ran"]

    def best(names: Sequence[str]) -> str | None:
        return min((name for name in names if name in ratios), key=lambda name: ratios[name]["value"], default=None)

    least = min((row["out_of_memory"] for row in peers.values()), default=0)
    return {
        "best_peer": best(PEERS),
        "best_batch_only": best(BATCH_ONLY),
        "fastest": proven and all(ratio["high"] >= 1.0 for ratio in ratios.values()),
        "careful": ours is not None and ours["out_of_memory"] <= least,
    }
