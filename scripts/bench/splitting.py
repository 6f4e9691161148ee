"""The cost of `prepare(on_oom="split")` while nothing runs out of memory, as a share of a step.

One model is trained by two steps that differ in it alone, one step of each in turn, and the order changes with each
pair. The figure is the mean over blocks of the median of the paired differences, over the median step, with a 95 %
interval from the blocks. Blocks are added until the interval is narrow enough, or the time is over. Times are those of
the process on one thread, since other processes disturb clocks.

Required: the upper end is below 0.5 % of a step that takes at least 20 ms.
"""

import math
from collections.abc import Callable
from statistics import fmean, median, stdev
from time import process_time
from typing import Any

import torch
from torch.nn import functional as F

from autofit import devices
from autofit.core.plan import Plan
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.units import format_duration
from autofit.prepare import prepare
from autofit.splitting import Splitting
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, StepBatch, TrainStep
from scripts.bench import report
from scripts.bench.overhead import Transformer

MOST_RATIO, LEAST_S = 0.005, 0.02
HALF_RATIO, LEAST_BLOCKS = 0.001, 10


def steps(size: int) -> tuple[TrainStep, TrainStep, StepBatch]:
    """Returns a step that raises, one that splits, both of one model, and a batch."""
    torch.manual_seed(0)
    model = Transformer()
    parts = [[torch.randn(size, 64, 128), torch.randint(0, 64, (size,))]]
    optimizer = torch.optim.AdamW(model.parameters())

    def made() -> TrainStep:
        loss = resolve_loss(model, parts[0], loss_fn=F.cross_entropy)
        return prepare(Plan(), Draft(model, loss, optimizer, torch.device("cpu")), members())

    plain, splitting = made(), made()
    splitting.splitting = Splitting(devices.choose("cpu"))
    return plain, splitting, StepBatch.of(parts)


def seconds(run: Callable[[], Any]) -> float:
    """Returns the seconds of processor time that a call takes."""
    began = process_time()
    run()
    return process_time() - began


def block(plain: TrainStep, splitting: TrainStep, batch: StepBatch, pairs: int) -> tuple[float, float]:
    """Returns the median difference of some pairs of steps, and the median step, in seconds."""
    differences, times = [], []
    for number in range(pairs):
        order = (plain, splitting) if number % 2 else (splitting, plain)
        took = {id(step): seconds(lambda step=step: step(batch)) for step in order}  # type: ignore[misc]  # a default
        differences.append(took[id(splitting)] - took[id(plain)])
        times.append(took[id(plain)])
    return median(differences), median(times)


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of steps in a block")
    parser.add_argument("--size", type=int, default=5, help="samples of a batch")
    parser.add_argument("--time", type=float, default=300.0, help="most seconds of processor time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    plain, splitting, batch = steps(given.size)
    block(plain, splitting, batch, 4)
    found, ratio, half, step_s = list[tuple[float, float]](), 0.0, math.inf, math.nan
    began = process_time()
    while len(found) < LEAST_BLOCKS or (half > HALF_RATIO and process_time() - began < given.time):
        found.append(block(plain, splitting, batch, given.pairs))
        if len(found) > 1:
            step_s = median(time_s for _, time_s in found)
            ratios = [difference_s / step_s for difference_s, _ in found]
            ratio, half = fmean(ratios), DEVIATIONS_95 * stdev(ratios) / math.sqrt(len(ratios))
    passed = ratio + half < MOST_RATIO and step_s >= LEAST_S
    summary = (
        f"splitting: {ratio:+.2%} of a step of {format_duration(step_s)} ({ratio - half:+.2%} to {ratio + half:+.2%}, "
        f"{len(found)} blocks of {given.pairs} pairs): {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"ratio": ratio, "half": half, "blocks": found, "step_s": step_s}, given.json, passed)


if __name__ == "__main__":
    main()
