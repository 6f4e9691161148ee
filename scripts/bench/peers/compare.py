"""autofit beside other finders on the CPU: the same models, the same real memory limit, each in a process of its own.

    pip install -c scripts/constraints.txt -r scripts/bench/peers/requirements.txt -e ".[examples]"
    python -m scripts.bench.peers [--only MODEL] [--finder NAME] [--keep DIR] [--json FILE]

Lightning's `BatchSizeFinder` in both modes, accelerate's `find_executable_batch_size`, a doubling loop, plain Optuna
TPE (`finders.py` says how each is run) and `autofit tune` search the same problem (`models.py`): the global
batch is free, the memory of live tensors is limited. What each returns is proven here, in a fresh process under the
same limit, by whole steps on the worst batch; then all that passed run in interleaved blocks in this process.

An out-of-memory of autofit is a probe that was refused memory or whose metered peak was over the budget. Steps are
optimizer steps that were done. "Kept" says that weights, buffers, gradients, optimizer, generators and modes were
bit-identical after the search; for autofit after a short `autofit.tune` in the process that holds them.

Required: on every model autofit's plan is not slower than any proven one of another finder beyond noise, in the
geometric mean it is 1.3 times as fast as the best of them, and it provoked no more out-of-memories than any of them.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from autofit import devices, planfile
from autofit.core.briefing import Options
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import HOST_LIMIT_ENVIRONMENT, RemoteBench, Target
from autofit.search.race import pair
from scripts.bench import files, report
from scripts.bench.peers import models

ROOT = Path(__file__).resolve().parents[3]
OURS = "autofit"
PEERS = ("lightning power", "lightning binsearch", "accelerate", "doubling", "optuna tpe")
BATCH_ONLY = PEERS[:-1]
TIMING = ("optuna tpe", "autofit state")
"""They time what they run, and so get the allocator's ordinary settings."""
LIMITED = {**HOST_LIMIT_ENVIRONMENT, "MALLOC_ARENA_MAX": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"}
WANTED = 1.3
PATIENCE_S = 480
"""A finder that runs longer is ended, and has found nothing."""
INSTALL = 'pip install -c scripts/constraints.txt -r scripts/bench/peers/requirements.txt -e ".[examples]"'
KINDS = ("lightning", "accelerate", "transformers")

Found = dict[str, Any]


# One finder on one model.


def find(finder: str, model: str, seconds: float, folder: Path) -> Found:
    """Returns what a finder found on a model, from `folder` where it is there already."""
    path = folder / f"{model}, {finder}.json"
    known = files.read(path)
    if known is None:
        known = _autofit(model, seconds, folder) if finder == OURS else _child(finder, model, seconds, folder)
        files.write(path, json.dumps(known, indent=1) + "\n")
    print(f"{model:12s} {finder:20s} {_found_in_words(known)}", flush=True)
    return known


def _found_in_words(found: Found) -> str:
    what = f"failed: {found['failed']}" if found["failed"] else str(Plan(values=found["plan"]))
    return f"{what}; {found['out_of_memory']} out of memory, {found['steps']} steps, {found['seconds']:.0f} s"


def _child(finder: str, model: str, seconds: float, folder: Path) -> Found:
    """Runs a finder, or what tells of autofit's state, in a process of its own."""
    out = folder / "found.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.bench.peers.finders", finder, model, str(out), "--seconds", str(seconds)]
    began, why = perf_counter(), ""
    try:
        done = subprocess.run(
            command, env={**os.environ, **({} if finder in TIMING else LIMITED)}, timeout=PATIENCE_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            why = f"its process ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"
    except subprocess.TimeoutExpired:
        why = f"not done in {PATIENCE_S} s"
    known = files.read(out)
    if known is not None and not why:
        return known
    return _nothing(why or "it wrote no result", perf_counter() - began)


def _nothing(why: str, seconds: float) -> Found:
    unknown = {"out_of_memory": 0, "translated": 0, "steps": 0, "ran": False, "changed": []}
    return {"plan": None, "failed": why, **unknown, "seconds": round(seconds, 2)}


def _autofit(model: str, seconds: float, folder: Path) -> Found:
    """Tunes by the command line, as a user does."""
    plan, study, steps = (folder / f"{model}.{end}" for end in ("yaml", "study.db", "steps"))
    for path in (plan, study, steps):
        path.unlink(missing_ok=True)
    target = f"{models.__name__}:{model}"
    command = [sys.executable, "-m", "autofit", "tune", target, "-o", str(plan), "--device", "cpu", "--quiet"]
    command += ["--memory", models.MODELS[model][1], "--time", str(seconds), "--study", str(study)]
    began = perf_counter()
    environment = {**os.environ, models.STEPS_FILE: str(steps)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    spent = perf_counter() - began
    if done.returncode:
        return _nothing(f"ended with {done.returncode}: {done.stderr.strip()[-200:]}", spent)
    found = planfile.load(plan)
    state = _child("autofit state", model, seconds, folder)
    return {
        "plan": dict(found.plan.values),
        "failed": "",
        "out_of_memory": sum(count for name, count in found.counts.items() if Status(name).does_not_fit),
        "translated": 0,
        "steps": steps.stat().st_size,
        "seconds": round(spent, 2),
        "ran": found.proof.worst_steps > 0,
        "changed": [state["failed"]] if state.get("failed") else state["changed"],
        "counts": found.counts,
        "gain": None if found.gain is None else found.gain.model_dump(),
        "trials": [
            {"plan": dict(one.plan.values), "status": one.outcome.status.value, "samples_per_s": _speed(one.outcome)}
            for one in (found.baseline, *found.alternatives)
        ],
    }


def _speed(outcome: Outcome) -> float | None:
    return None if outcome.measurement is None else outcome.measurement.samples_per_s


# What the findings are worth.


def prove(model: str, plans: Sequence[Plan], path: Path) -> dict[str, dict[str, Any]]:
    """Returns by plan whether it runs in a fresh process under the limit, and how fast it is there.

    The limit decides. What ran under it while the record of its allocations is above the budget counts as run. What
    was proven before is in the file `path`.
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
        "samples_per_s": _speed(outcome) if outcome.measured else None,
        "peak_bytes": None if seen is None else seen.memory.judged_bytes,
    }


def race(model: str, plans: Sequence[Plan], pairs: int) -> dict[str, list[float]]:
    """Returns by plan the log throughput of each of its blocks, in rounds that run forward and backward in turn."""
    logs: dict[str, list[float]] = {plan.key: [] for plan in plans}
    options = Options(memory_budget=models.budget_bytes(model))
    with LocalBench(models.MODELS[model][0](), devices.choose("cpu"), options) as bench:
        for number in range(pairs if len(plans) > 1 else 1):
            for plan in plans if number % 2 == 0 else plans[::-1]:
                measured = bench.evaluate(plan, Purpose.BLOCK).measurement
                if measured is None:
                    raise SystemExit(f"peers: {plan} of {model} ran in its proof and not in its block")
                logs[plan.key].append(math.log(measured.samples_per_s))
    return logs


def judge(model: str, found: Mapping[str, Found], pairs: int, folder: Path) -> dict[str, Any]:
    """Returns the finders of a model with the proof of what they returned and autofit's throughput over theirs."""
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
    """Returns autofit's ratio to the best proven peer, and to the best that changes the batch alone; and the two tests.

    A model on which no peer's setting was proven has no ratio, and passes when autofit's was.
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


def in_words(case: Mapping[str, Any]) -> str:
    """Returns the table of one model."""
    name, columns = case["model"], ("samples/s", "autofit over it", "OOM", "steps", "seconds", "ran", "kept")
    head = "{:20s} {:>9s} {:>22s} {:>4s} {:>6s} {:>8s} {:>4s}  {}".format("", *columns)
    lines = [f"{name}, {format_bytes(models.budget_bytes(name))}", head]
    for finder, row in case["finders"].items():
        proof = row["proof"]
        speed = f"{row['raced_samples_per_s']:.1f}" if proof["ran"] else "none"
        over = str(Ratio(**row["autofit_over_it"])) if "autofit_over_it" in row else ""
        kept = "all" if not row["changed"] else f"not {', '.join(row['changed'])}"
        told = f"{finder:20s} {speed:>9s} {over:>22s} {row['out_of_memory']:4d} {row['steps']:6d} {row['seconds']:8.0f}"
        plan = f"; {Plan(values=row['plan'])}" if row["plan"] else ""
        failed = "" if proof["ran"] else f"; NOT PROVEN: {proof['reason']}"
        translated = f"; {row['translated']} failures translated for it" if row["translated"] else ""
        lines.append(f"{told} {'yes' if row['ran'] else 'no':>4s}  {kept}{plan}{translated}{failed}")
    return "\n".join(lines)


def mean_over(cases: Sequence[Mapping[str, Any]], which: str) -> float | None:
    """Returns the geometric mean of autofit's throughput over that of the peer named under `which` on each model."""
    logs = [math.log(case["finders"][case[which]]["autofit_over_it"]["value"]) for case in cases if case[which]]
    return math.exp(sum(logs) / len(logs)) if logs else None


def parse() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--only", metavar="MODEL", action="append", help="this model; may be given again")
    parser.add_argument("--finder", metavar="NAME", action="append", help="this finder; may be given again")
    parser.add_argument("--quick", action="store_true", help="short searches, few blocks: to see that all runs")
    parser.add_argument("--time", type=float, default=60, help="seconds for autofit, and for TPE")
    parser.add_argument("--pairs", type=int, default=12, help="blocks of each plan in the comparison")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep what was found here, and go on from it")
    given = parser.parse_args()
    missing = [name for name in KINDS if importlib.util.find_spec(name) is None]
    if missing:
        report.fail(f"peers: {', '.join(missing)} is not installed; expected the bench's extras: {INSTALL}", 2)
    for asked, known in ((given.only, list(models.MODELS)), (given.finder, [*PEERS, OURS])):
        if unknown := sorted(set(asked or ()) - set(known)):
            report.fail(f"peers: {', '.join(unknown)} is not known; expected some of {', '.join(known)}", 2)
    given.only, given.finder = given.only or list(models.MODELS), given.finder or [*PEERS, OURS]
    if given.quick:
        given.time, given.pairs = 20.0, 4
    return given


def measure(model: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the figures of a model, from `folder` where all of them are there already."""
    path = folder / f"{model}.json"
    found = {finder: find(finder, model, given.time, folder) for finder in given.finder}
    case = files.read(path)
    if case is None or list(case["finders"]) != given.finder:
        case = judge(model, found, given.pairs, folder)
        files.write(path, json.dumps(case, indent=1) + "\n")
    print(in_words(case), flush=True)
    return case


def summed_up(cases: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any], bool]:
    """Returns the last line, the figures, and whether all that is required was reached."""
    over, batch_only = mean_over(cases, "best_peer"), mean_over(cases, "best_batch_only")
    slower = [case["model"] for case in cases if not case["fastest"]]
    careless = [case["model"] for case in cases if not case["careful"]]
    passed = not slower and not careless and over is not None and over >= WANTED

    def told(mean: float | None) -> str:
        return "no figure" if mean is None else f"{mean:.2f}x"

    summary = (
        f"peers: autofit {told(over)} of the best peer in the geometric mean of {len(cases)} models (wanted "
        f"{WANTED}x), {told(batch_only)} of the best that changes the batch alone; slower on "
        f"{', '.join(slower) or 'none'}; more out-of-memories on {', '.join(careless) or 'none'}: "
        f"{'ok' if passed else 'MISSED'}"
    )
    return summary, {"mean": over, "mean_batch_only": batch_only, "cases": list(cases)}, passed


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as passing:
        folder: Path = given.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        cases = [measure(model, given, folder) for model in given.only]
    summary, figures, passed = summed_up(cases)
    report.finish(summary, figures, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
