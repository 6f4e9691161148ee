"""Whether a Hugging Face and a Lightning Trainer are as fast under an exported plan as the plan promised.

Four models with random weights are tuned within their Trainer on one CPU thread: two with steps of 50 to 100 ms, and
two small ones, for which the Trainer's overhead matters. Then blocks of the Trainer under the exported plan and blocks
of the prepared step over the same data alternate (A B, B A), so that what slows this machine cancels. Required: the
Trainer reaches the promised throughput within 5 %, or does so without the overhead that the integration reports. The
whole 95 % interval must be within 5 %. The machine's drift since the plan was proven is left out and shown beside.
"""

import logging
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autofit.integrations.reached import promised_per_s
from scripts.bench import report
from scripts.bench.trainers import judging
from scripts.bench.trainers.arms import Prepared, Trained
from scripts.bench.trainers.huggingface import InHuggingFace
from scripts.bench.trainers.judging import BlockTimes
from scripts.bench.trainers.lightning import InLightning

LEAST_STEPS, MOST_STEPS = 20, 200
"""Limits on the timed steps of a block. The Lightning callback reports nothing of fewer."""
NAMES = ("huggingface", "huggingface-small", "lightning", "lightning-small")


def case(name: str, folder: str) -> Trained:
    """Returns the model of a case."""
    known: dict[str, Callable[[], Trained]] = {
        NAMES[0]: lambda: InHuggingFace(name, width=128, depth=4, length=64, size=4, folder=folder),
        NAMES[1]: lambda: InHuggingFace(name, width=48, depth=3, length=32, size=4, folder=folder),
        NAMES[2]: lambda: InLightning(name, width=128, depth=3, length=64, size=8),
        NAMES[3]: lambda: InLightning(name, width=64, depth=2, length=32, size=8),
    }
    return known[name]()


def steps_per_block(seconds: float, step_s: float) -> int:
    """Returns the number of steps that a block of this many seconds has."""
    return min(MOST_STEPS, max(LEAST_STEPS, round(seconds / step_s)))


def measure(trained: Trained, tuning_s: float, pairs: int, block_s: float) -> dict[str, Any]:
    """Returns the figures of one case, after printing them."""
    fit = trained.tune(tuning_s)
    promised_s = fit.plan.global_batch_size / promised_per_s(fit.recommendation)
    steps, said = steps_per_block(block_s, promised_s), ""
    blocks: dict[str, list[BlockTimes]] = {"trainer": [], "prepared": []}
    with trained.prepared(fit) as step:
        prepared = Prepared(step)
        for number in range(pairs):
            for arm in ("trainer", "prepared") if number % 2 == 0 else ("prepared", "trainer"):
                if arm == "trainer":
                    block, said = trained.block(fit, steps)
                else:
                    block = prepared.block(steps)
                blocks[arm].append(block)
    result = judging.found(blocks["trainer"], blocks["prepared"], promised_s)
    print(f"{trained.name}: {fit.plan}, {pairs} pairs of {steps} steps of {1e3 * promised_s:.1f} ms: {result.verdict}")
    for line in (*result.lines(), f"the integration says of the last block: {said or 'nothing'}"):
        print(f"  {line}", flush=True)
    return {
        "case": trained.name,
        "plan": dict(fit.plan.values),
        "promised_step_s": promised_s,
        "steps": steps,
        **result.figures(),
        "said": said,
        "blocks": {arm: judging.as_figures(ran) for arm, ran in blocks.items()},
    }


def summary(cases: Sequence[dict[str, Any]]) -> str:
    """Returns the last line."""
    verdicts = ", ".join(f"{each['case']} {each['promise_now']['value']:.3f} ({each['verdict']})" for each in cases)
    return f"trainers / promise: {verdicts}: {'ok' if all(each['ok'] for each in cases) else 'MISSED'}"


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--time", type=float, default=25, help="time budget of the search of each model, in seconds")
    parser.add_argument("--pairs", type=int, default=24, help="pairs of blocks for each model")
    parser.add_argument("--block", type=float, default=1.0, help="timed seconds of a block")
    parser.add_argument("cases", nargs="*", default=NAMES, help="the models to run; all by default")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        cases = [measure(case(name, folder), given.time, given.pairs, given.block) for name in given.cases]
    report.finish(summary(cases), {"cases": cases}, given.json, all(each["ok"] for each in cases), device="cpu")


if __name__ == "__main__":
    main()
