"""Noise: what the blocks of a table say of how runs of one plan differ."""

import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

from autofit.replay.table import Block, Entry, Table

WINDOW = 9
"""Blocks that ran next to each other whose common level is the drift of that moment: disturbances are short. Of the
recorded tables a window of 25 leaves 12 to 36 % more of the noise to single blocks."""
ROUNDS = 10
"""Times that the drift and the plans' levels are fitted in turn. On the recorded tables an eleventh moves the drift of
no moment by more than 0.8 %, and sixty leave the same noise to single blocks, within 0.3 % of it."""


class Drift:
    """The level that all plans share at a moment: a machine that warms up slows them alike.

    Kept apart from the noise of single runs, because it cancels between neighbouring blocks of a race and noise does
    not. A block's pace is taken to be its plan's times that of the moment: the two are fitted in turn (Buja, Hastie and
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
        """Returns the log of how much slower than usual the machine was at a moment of the recording."""
        if not self._times_s:
            return 0.0
        index = bisect_left(self._times_s, at_s)
        near = [i for i in (index - 1, index) if 0 <= i < len(self._times_s)]
        return self._logs[min(near, key=lambda i: abs(self._times_s[i] - at_s))]

    def moment(self, elapsed_s: float) -> float:
        """Returns the moment of the recording so many seconds after its first block; forth and back without end."""
        if not self._times_s or (length := self._times_s[-1] - self._times_s[0]) <= 0:
            return elapsed_s
        turn = elapsed_s % (2 * length)
        return self._times_s[0] + min(turn, 2 * length - turn)

    @property
    def length_s(self) -> float:
        """Seconds from the first block to the last."""
        return self._times_s[-1] - self._times_s[0] if self._times_s else 0.0


class Bursts:
    """A machine that others use from time to time: calm, then slowed by so much for a while, and calm again.

    What runs inside a burst is slowed all alike, so neighbouring blocks of a race mostly share it and separate probes
    do not. Lengths are exponential and a burst's strength is uniform, all drawn from the seed alone.

    Args:
        seed: decides when bursts come and how strong they are.
        calm_s: mean seconds between two of them.
        burst_s: mean seconds that one lasts.
        most_log: the strongest slows by the exponential of this.
    """

    def __init__(self, seed: int, calm_s: float, burst_s: float, most_log: float) -> None:
        self._chance = random.Random(seed)
        self._means_s = (calm_s, burst_s)
        self._most_log = most_log
        self._ends_s: list[float] = []
        self._logs: list[float] = []

    def __call__(self, at_s: float) -> float:
        """Returns the log of how much slower the machine is at a moment of the search, 0 where it is calm."""
        while not self._ends_s or self._ends_s[-1] <= at_s:
            before_s, bursts = (self._ends_s[-1] if self._ends_s else 0.0), len(self._ends_s) % 2
            self._ends_s.append(before_s + self._chance.expovariate(1 / self._means_s[bursts]))
            self._logs.append(self._chance.uniform(0, self._most_log) if bursts else 0.0)
        return self._logs[bisect_right(self._ends_s, at_s)]

    def slowed(self, times_s: Sequence[float], began_s: float) -> tuple[float, ...]:
        """Returns the times of steps that run one after the other from a moment on, each slowed as it begins."""
        found: list[float] = []
        for time_s in times_s:
            found.append(time_s * math.exp(self(began_s)))
            began_s += found[-1]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one plan, to draw further ones from.

    A drawn run has the level of one recorded block, moved to the drift of the moment, and step times drawn anew from
    the spread within all blocks. Few blocks understate the spread between runs; that the steps, whose chance is in the
    level of a block already, are drawn again adds to it. Where batches may differ the steps of a block stay as they
    are: a step takes as long as its batch is large, of which nothing is known. More steps than a block has are those of
    others, at its level.

    Attributes:
        blocks: recorded blocks, those that failed among them.
        ratios: each step time over that of its block; () where they belong to their block.
    """

    blocks: tuple[Block, ...]
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, entry: Entry) -> "Runs":
        """Returns the recorded blocks of a plan; its probe where none ran."""
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
        """Returns a recorded block; one that failed only if `may_fail`."""
        return chance.choice(self.blocks if may_fail else self.ran)

    def step_times_s(self, block: Block, steps: int, slower_log: float, chance: random.Random) -> tuple[float, ...]:
        """Returns drawn step times at the level of `block`, slowed by the exponential of `slower_log`."""
        level = block.step_time_s * math.exp(slower_log)
        if not self.ratios:
            return tuple(islice(self._passes(block, level, chance), steps))
        return tuple(level * ratio for ratio in chance.choices(self.ratios, k=steps))

    def _passes(self, block: Block, level: float, chance: random.Random) -> Iterator[float]:
        """Yields the steps of `block` at a level, then those of others that were drawn."""
        while True:
            yield from (time_s / block.step_time_s * level for time_s in block.step_times_s)
            block = chance.choice(self.ran)


def _pace(entry: Entry, block: Block) -> float | None:
    units = block.tokens_per_step or entry.plan.global_batch_size
    return block.step_time_s / units if block.step_times_s else None


def _ran(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block.step_times_s)
