"""Compares autofit with other finders on a CPU: same models, same real memory limit, each in its own process.

    pip install -c scripts/constraints.txt -r scripts/bench/peers/requirements.txt -e ".[examples]"
    python -m scripts.bench.peers [--only MODEL] [--finder NAME] [--keep DIR] [--json FILE]

Lightning's `BatchSizeFinder` in both modes, accelerate's `find_executable_batch_size`, a doubling loop, plain Optuna
TPE (see `finders.py`) and `autofit tune` search the same problem (`models.py`): the global batch size is free, and the
memory of live tensors is limited. Each result is proven in a fresh process under the same limit, by whole steps on the
worst batch. The proven plans then run in interleaved blocks in this process.

For autofit, an out-of-memory error is a probe that ran out of memory or whose measured peak was over the budget. Steps
are completed optimizer steps. "Kept" means that weights, buffers, gradients, optimizer, generators and modes were
bit-identical after the search; for autofit, after a short `autofit.tune` in the process that holds them.

Required: on every model, autofit's plan is not slower than any proven plan of another finder beyond noise, and autofit
caused no more out-of-memory errors than any of them. In the geometric mean, its plan is 1.3 times as fast as the best
plan of the other finders.
"""

import argparse
import importlib.util
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofit.core.answer import Ratio
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from scripts.bench import files, report
from scripts.bench.peers import models
from scripts.bench.peers.finding import OURS, PEERS, find
from scripts.bench.peers.judging import judge

WANTED = 1.3
"""Required geometric mean of autofit's throughput over that of the best other finder."""
INSTALL = 'pip install -c scripts/constraints.txt -r scripts/bench/peers/requirements.txt -e ".[examples]"'
KINDS = ("lightning", "accelerate", "transformers")


def in_words(case: Mapping[str, Any]) -> str:
    """Returns the results of one model as a table."""
    name, columns = case["model"], ("samples/s", "autofit over it", "OOM", "steps", "seconds", "ran", "kept")
    head = "{:20s} {:>9s} {:>22s} {:>4s} {:>6s} {:>8s} {:>4s}  {}".format("", *columns)
    lines = [f"{name}, {format_bytes(models.budget_bytes(name))}", head]
    for finder, row in case["finders"].items():
        proof = row["proof"]
        speed = f"{row['raced_samples_per_s']:.1f}" if proof["ran"] else "none"
        over = str(Ratio(**row["autofit_over_it"])) if "autofit_over_it" in row else ""
        kept = "all" if not row["changed"] else f"not {', '.join(row['changed'])}"
        line = f"{finder:20s} {speed:>9s} {over:>22s} {row['out_of_memory']:4d} {row['steps']:6d} {row['seconds']:8.0f}"
        plan = f"; {Plan(values=row['plan'])}" if row["plan"] else ""
        failed = "" if proof["ran"] else f"; NOT PROVEN: {proof['reason']}"
        translated = f"; {row['translated']} failures translated for this finder" if row["translated"] else ""
        lines.append(f"{line} {'yes' if row['ran'] else 'no':>4s}  {kept}{plan}{translated}{failed}")
    return "\n".join(lines)


def mean_over(cases: Sequence[Mapping[str, Any]], which: str) -> float | None:
    """Returns the geometric mean of autofit's throughput relative to the peer under `which` of each case."""
    logs = [math.log(case["finders"][case[which]]["autofit_over_it"]["value"]) for case in cases if case[which]]
    return math.exp(sum(logs) / len(logs)) if logs else None


def parse() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--only", metavar="MODEL", action="append", help="use only this model; may be repeated")
    parser.add_argument("--finder", metavar="NAME", action="append", help="use only this finder; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="short searches and few blocks, to check that everything runs"
    )
    parser.add_argument("--time", type=float, default=60, help="time budget of autofit and of TPE, in seconds")
    parser.add_argument("--pairs", type=int, default=12, help="number of blocks of each plan in the comparison")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep results in this folder and continue from them")
    given = parser.parse_args()
    missing = [name for name in KINDS if importlib.util.find_spec(name) is None]
    if missing:
        report.fail(f"peers: {', '.join(missing)} is not installed; this benchmark needs: {INSTALL}", 2)
    for asked, known in ((given.only, list(models.MODELS)), (given.finder, [*PEERS, OURS])):
        if unknown := sorted(set(asked or ()) - set(known)):
            report.fail(f"peers: {', '.join(unknown)} is unknown; expected some of {', '.join(known)}", 2)
    given.only, given.finder = given.only or list(models.MODELS), given.finder or [*PEERS, OURS]
    if given.quick:
        given.time, given.pairs = 20.0, 4
    return given


def measure(model: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the figures of a model; they are read from `folder` if they are complete there."""
    path = folder / f"{model}.json"
    found = {finder: find(finder, model, given.time, folder) for finder in given.finder}
    case = files.read(path)
    if case is None or list(case["finders"]) != given.finder:
        case = judge(model, found, given.pairs, folder)
        files.write(path, json.dumps(case, indent=1) + "\n")
    print(in_words(case), flush=True)
    return case


def summed_up(cases: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary line, the figures, and whether all requirements are met."""
    over, batch_only = mean_over(cases, "best_peer"), mean_over(cases, "best_batch_only")
    slower = [case["model"] for case in cases if not case["fastest"]]
    careless = [case["model"] for case in cases if not case["careful"]]
    passed = not slower and not careless and over is not None and over >= WANTED

    def in_short(mean: float | None) -> str:
        return "no figure" if mean is None else f"{mean:.2f}x"

    summary = (
        f"peers: autofit {in_short(over)} of the best peer in the geometric mean of {len(cases)} models (required "
        f"{WANTED}x), {in_short(batch_only)} of the best that changes only the batch; slower on "
        f"{', '.join(slower) or 'none'}; more out-of-memory errors on {', '.join(careless) or 'none'}: "
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
