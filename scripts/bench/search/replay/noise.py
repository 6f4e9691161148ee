"""Noise: drift and spread of the runs of one plan, from the blocks of a table."""

import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

from scripts.bench.search.replay.table import Block, Entry, Table

WINDOW = 9
"""Number of neighbouring blocks whose common level is the drift of that moment. It is small because disturbances are
short: on the recorded tables, a window of 25 leaves 12 to 36 % more noise in single blocks."""
ROUNDS = 10
"""Number of alternating fits of the drift and of the plans' levels. On the recorded tables, an eleventh round changes
the drift of no moment by more than 0.8 %, and after sixty rounds the noise in single blocks is the same within 0.3
%."""


class Drift:
    """The level that all plans share at a moment: a machine that warms up slows them alike.

    It is separate from the noise of single runs, because it cancels between neighbouring blocks of a race. The pace of
    a block is modelled as that of its plan times that of the moment; the two are fitted alternately (Buja, Hastie and
    Tibshirani, Linear smoothers and additive models, 1989).
    """

    def __init__(self, table: Table) -> None:
        blocks = sorted(
            (block.at_s, number, math.log(pace))
            for number, entry in enumerate(table.entries)
            for block in entry.blocks
            if (pace := _pace(entry, block)) is not None
        )
        self._times_s = [at_s for at_s, _, _ in blocks]
        self._logs = [0.0] * len(blocks)
        half = WINDOW // 2
        for _ in range(ROUNDS):
            plans = defaultdict(list)
            for (_, number, log), drift in zip(blocks, self._logs, strict=True):
                plans[number].append(log - drift)
            levels = {number: fmean(logs) for number, logs in plans.items()}
            rest = [log - levels[number] for _, number, log in blocks]
            self._logs = [median(rest[max(i - half, 0) : i + half + 1]) for i in range(len(rest))]

    def __call__(self, at_s: float) -> float:
        """Returns the log of the machine's slowdown at a moment of the recording."""
        if not self._times_s:
            return 0.0
        index = bisect_left(self._times_s, at_s)
        near = [i for i in (index - 1, index) if 0 <= i < len(self._times_s)]
        return self._logs[min(near, key=lambda i: abs(self._times_s[i] - at_s))]

    def moment(self, elapsed_s: float) -> float:
        """Returns the moment of the recording at a time after its first block; the recording runs back and forth."""
        if not self._times_s or (length := self._times_s[-1] - self._times_s[0]) <= 0:
            return elapsed_s
        turn = elapsed_s % (2 * length)
        return self._times_s[0] + min(turn, 2 * length - turn)

    @property
    def length_s(self) -> float:
        """Seconds from the first block to the last."""
        return self._times_s[-1] - self._times_s[0] if self._times_s else 0.0


class Bursts:
    """A shared machine: calm, then slowed for a while, and calm again.

    A burst slows all runs inside it alike, so neighbouring blocks of a race mostly share it and separate probes do not.
    Lengths have an exponential and strengths a uniform distribution, all drawn from the seed alone.

    Args:
        seed: decides times and strengths of the bursts.
        calm_s: mean seconds between two bursts.
        burst_s: mean seconds of a burst.
        most_log: log of the largest slowdown.
    """

    def __init__(self, seed: int, calm_s: float, burst_s: float, most_log: float) -> None:
        self._chance = random.Random(seed)
        self._means_s = (calm_s, burst_s)
        self._most_log = most_log
        self._ends_s: list[float] = []
        self._logs: list[float] = []

    def __call__(self, at_s: float) -> float:
        """Returns the log of the machine's slowdown at a moment of the search; 0 while it is calm."""
        while not self._ends_s or self._ends_s[-1] <= at_s:
            before_s, bursts = (self._ends_s[-1] if self._ends_s else 0.0), len(self._ends_s) % 2
            self._ends_s.append(before_s + self._chance.expovariate(1 / self._means_s[bursts]))
            self._logs.append(self._chance.uniform(0, self._most_log) if bursts else 0.0)
        return self._logs[bisect_right(self._ends_s, at_s)]

    def slowed(self, times_s: Sequence[float], began_s: float) -> tuple[float, ...]:
        """Returns the times of consecutive steps from a moment on, each slowed by the burst in which it begins."""
        found: list[float] = []
        for time_s in times_s:
            found.append(time_s * math.exp(self(began_s)))
            began_s += found[-1]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Runs:
    """The recorded runs of one plan, from which further runs are drawn.

    A drawn run has the level of one recorded block, moved to the drift of the moment, and step times drawn from the
    spread within all blocks. Few blocks understate the spread between runs; drawing the step times as well, whose
    chance is already part of a block's level, increases it. If batches may differ, the steps of a block are kept: the
    duration of a step depends on the size of its batch, which is unknown. Additional steps are taken from other blocks,
    at the level of the first.

    Attributes:
        blocks: recorded blocks, failed ones included.
        ratios: each step time over that of its block; () if steps are kept with their block.
    """

    blocks: tuple[Block, ...]
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, entry: Entry) -> "Runs":
        """Returns the recorded blocks of a plan, or its probe if none ran."""
        blocks = entry.blocks
        if not _ran(blocks) and (measurement := entry.outcome.measurement) is not None:
            blocks = (*blocks, Block.of(measurement, entry.at_s))
        ran = _ran(blocks)
        differ = any(block.tokens_per_step is not None or block.cycle > 1 for block in ran)
        return cls(blocks, () if differ else tuple(t / b.step_time_s for b in ran for t in b.step_times_s))

    @property
    def ran(self) -> tuple[Block, ...]:
        """The blocks that did not fail."""
        return _ran(self.blocks)

    def draw(self, chance: random.Random, may_fail: bool) -> Block:
        """Returns a recorded block; a failed one only if `may_fail`."""
        return chance.choice(self.blocks if may_fail else self.ran)

    def step_times_s(self, block: Block, steps: int, slower_log: float, chance: random.Random) -> tuple[float, ...]:
        """Returns drawn step times at the level of `block`, slowed by the exponential of `slower_log`."""
        level = block.step_time_s * math.exp(slower_log)
        if not self.ratios:
            return tuple(islice(self._passes(block, level, chance), steps))
        return tuple(level * ratio for ratio in chance.choices(self.ratios, k=steps))

    def _passes(self, block: Block, level: float, chance: random.Random) -> Iterator[float]:
        """Yields the steps of `block` at a level, then those of other blocks drawn at random."""
        while True:
            yield from (time_s / block.step_time_s * level for time_s in block.step_times_s)
            block = chance.choice(self.ran)


def _pace(entry: Entry, block: Block) -> float | None:
    units = block.tokens_per_step or entry.plan.global_batch_size
    return block.step_time_s / units if block.step_times_s else None


def _ran(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block.step_times_s)
