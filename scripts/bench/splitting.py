"""The cost of `prepare(on_oom="split")` while nothing runs out of memory, as a share of a step.

One model is trained by two steps that differ in it alone, one step of each in turn, and the order changes with each
pair. The figure is the mean over blocks of the median of the paired differences, over the median step, with a 95 %
interval from the blocks. Blocks are added until the interval is narrow enough, or the time is over. Times are those of
the process on one thread, since other processes disturb clocks.

With --ranks, real ranks communicate by gloo under the layout `replicated`, and vote after each last pass. Times
are then those of a clock, since a rank waits for others, and there are `--blocks` of them. With --device, each pass
also gives work to a device, a thread that sleeps, and waits until it has done that of the pass before, as a host runs
ahead of an accelerator. A step then takes from the begin of the device's work to that of the next, and `--pairs` steps
of one kind follow each other.

Required: the upper end is below 0.5 % of a step that takes at least 20 ms.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from statistics import fmean, median, stdev
from time import perf_counter, process_time, sleep
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autofit import devices
from autofit.core.plan import Plan
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.units import format_duration
from autofit.prepare import prepare
from autofit.splitting import Splitting
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, Ranks, StepBatch, TrainStep
from autofit.workloads.votes import Votes
from scripts.bench import report
from scripts.bench.overhead import Transformer
from scripts.bench.ranks.launching import launched

MOST_RATIO, LEAST_S = 0.005, 0.02
HALF_RATIO, LEAST_BLOCKS = 0.001, 10


class Ahead(nn.Module):
    """Has a device work beside each forward pass of a model, and waits for its work of the pass before."""

    def __init__(self, model: nn.Module, device_s: float) -> None:
        super().__init__()
        self.model, self.device_s, self.began = model, device_s, list[float]()
        self._device, self._work = ThreadPoolExecutor(1), list[Future[None]]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while self._work:
            self._work.pop().result()
        self._work.append(self._device.submit(sleep, self.device_s))
        self.began.append(perf_counter())
        out: torch.Tensor = self.model(x)
        return out


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


def seconds(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Returns the seconds of a clock that a call takes."""
    began = clock()
    run()
    return clock() - began


def block(
    plain: Callable[[], Any], splitting: Callable[[], Any], pairs: int, clock: Callable[[], float] = process_time
) -> tuple[float, float]:
    """Returns the median difference of some pairs of steps, and the median step, in seconds."""
    differences, times = [], []
    for number in range(pairs):
        order = (plain, splitting) if number % 2 else (splitting, plain)
        took = {id(step): seconds(step, clock) for step in order}
        differences.append(took[id(splitting)] - took[id(plain)])
        times.append(took[id(plain)])
    return median(differences), median(times)


def block_ahead(
    plain: Callable[[], Any], splitting: Callable[[], Any], model: Ahead, pairs: int
) -> tuple[float, float]:
    """Returns the difference of the median steps of each kind in a row, and the median step, by the device's work."""
    took = []
    for step in (plain, splitting):
        model.began.clear()
        for _ in range(pairs + 1):
            step()
        took.append(median(after - before for before, after in pairwise(model.began)))
    return took[1] - took[0], took[0]


def blocks_on_ranks(ranks: Ranks, size: int, pairs: int, count: int, device_s: float) -> list[tuple[float, float]]:
    """Returns `count` blocks of a step that raises, and splits, in turn."""
    torch.manual_seed(0)
    model, parts = Ahead(Transformer(), device_s), [[torch.randn(size, 64, 128), torch.randint(0, 64, (size,))]]
    loss, device = resolve_loss(model, parts[0], loss_fn=F.cross_entropy), torch.device("cpu")
    draft = Draft(model, loss, torch.optim.AdamW(model.parameters()), device, ranks=ranks)
    step, batch = prepare(Plan(values={"layout": "replicated"}), draft, members()), StepBatch.of(parts)
    splitting = Splitting(devices.choose("cpu"), votes=Votes.of(ranks))

    def run(found: Splitting | None) -> None:
        step.splitting = found
        step(batch)

    plain, splits = partial(run, None), partial(run, splitting)
    blocks = count + 1  # the first one warms up
    if not device_s:
        return [block(plain, splits, pairs, perf_counter) for _ in range(blocks)][1:]
    return [block_ahead(plain, splits, model, pairs) for _ in range(blocks)][1:]


def ratio_of(blocks: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Returns the mean ratio of blocks, half of its interval, and the median step in seconds."""
    step_s = median(time_s for _, time_s in blocks)
    ratios = [difference_s / step_s for difference_s, _ in blocks]
    return fmean(ratios), DEVIATIONS_95 * stdev(ratios) / math.sqrt(len(ratios)), step_s


def blocks_alone(size: int, pairs: int, most_s: float) -> tuple[list[tuple[float, float]], tuple[float, float, float]]:
    """Returns blocks in one process, until their interval is narrow or the time is over, and their `ratio_of`."""
    plain, splitting, batch = steps(size)
    both = partial(plain, batch), partial(splitting, batch)
    block(*both, 4)
    found, began = [block(*both, pairs) for _ in range(LEAST_BLOCKS)], process_time()
    while ratio_of(found)[1] > HALF_RATIO and process_time() - began < most_s:
        found.append(block(*both, pairs))
    return found, ratio_of(found)


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of steps in a block")
    parser.add_argument("--size", type=int, default=5, help="samples of a batch")
    parser.add_argument("--time", type=float, default=300.0, help="most seconds of processor time")
    parser.add_argument("--ranks", type=int, default=1, help="real ranks, which communicate by gloo")
    parser.add_argument("--device", type=float, default=0.0, help="seconds of a device in each pass of several ranks")
    parser.add_argument("--blocks", type=int, default=2 * LEAST_BLOCKS, help="blocks of pairs, of several ranks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.ranks > 1:
        how = given.size, given.pairs, given.blocks, given.device
        found = launched(blocks_on_ranks, *how, ranks=given.ranks)[0]
        ratio, half, step_s = ratio_of(found)
    else:
        found, (ratio, half, step_s) = blocks_alone(given.size, given.pairs, given.time)
    passed = ratio + half < MOST_RATIO and step_s >= LEAST_S
    summary = (
        f"splitting: {ratio:+.2%} of a step of {format_duration(step_s)} ({ratio - half:+.2%} to {ratio + half:+.2%}, "
        f"{len(found)} blocks of {given.pairs} pairs): {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"ratio": ratio, "half": half, "blocks": found, "step_s": step_s}, given.json, passed)


if __name__ == "__main__":
    main()
