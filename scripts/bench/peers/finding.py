"""Runs one finder, or autofit, on one model in its own process, and keeps the result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from autofit import planfile
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.probing.remote.bench import HOST_LIMIT_ENVIRONMENT
from scripts.bench import files
from scripts.bench.peers import models

OURS = "autofit"
PEERS = ("lightning power", "lightning binsearch", "accelerate", "doubling", "optuna tpe")
TIMING = ("optuna tpe", "autofit state")
"""These time what they run, so their processes have the allocator's ordinary settings."""
LIMITED = {**HOST_LIMIT_ENVIRONMENT, "MALLOC_ARENA_MAX": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"}
"""Environment of the other finders, in which the limit is that of the tensors."""
PATIENCE_S = 480
"""A finder that runs longer is killed and counts as having found nothing."""

Found = dict[str, Any]


def find(finder: str, model: str, seconds: float, folder: Path) -> Found:
    """Returns the result of a finder on a model; it is read from `folder` if it is there."""
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
    """Runs a finder, or the check of autofit's state, in its own process."""
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
        why = f"not finished after {PATIENCE_S} s"
    known = files.read(out)
    if known is not None and not why:
        return known
    return _nothing(why or "it wrote no result", perf_counter() - began)


def _nothing(why: str, seconds: float) -> Found:
    unknown = {"out_of_memory": 0, "translated": 0, "steps": 0, "ran": False, "changed": []}
    return {"plan": None, "failed": why, **unknown, "seconds": round(seconds, 2)}


def _autofit(model: str, seconds: float, folder: Path) -> Found:
    """Tunes by the command line, as a user does."""
    plan, study, steps = (folder / f"{model}.{end}" for end in ("yaml", "study.journal", "steps"))
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
            {"plan": dict(one.plan.values), "status": one.outcome.status.value, "samples_per_s": speed_of(one.outcome)}
            for one in (found.baseline, *found.alternatives)
        ],
    }


def speed_of(outcome: Outcome) -> float | None:
    return None if outcome.measurement is None else outcome.measurement.samples_per_s
