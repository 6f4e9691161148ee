"""Noise: what the blocks of a table say of how runs of one plan differ."""

import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

from autofit.core.table import Block, Entry, Table

WINDOW = 25
"""Blocks that ran next to each other whose common level is the drift of that moment."""


class Drift:
    """The level that all plans share at a moment: a machine that warms up slows them alike.

    Kept apart from the noise of single runs, because it cancels between neighbouring blocks of a race and noise does
    not.
    """

    def __init__(self, table: Table) -> None:
        points = sorted(
            (block.at_s, math.log(pace / usual))
            for entry in table.entries
            if (usual := usual_pace(entry)) is not None
            for block in entry.blocks
            if (pace := _pace(entry, block)) is not None
        )
        half = WINDOW // 2
        self._times_s = [at_s for at_s, _ in points]
        self._logs = [median(log for _, log in points[max(i - half, 0) : i + half + 1]) for i in range(len(points))]

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


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one plan, to draw further ones from.

    A drawn run has the level of one recorded block, moved to the drift of the moment, and step times drawn anew from
    the spread within all blocks. Few blocks understate the spread between runs; that the steps, whose chance is in the
    level of a block already, are drawn again adds to it. Where tokens were counted the steps of a block stay as they
    are: a step takes as long as its batch has tokens, which are known of the whole block only.

    Attributes:
        blocks: recorded blocks, those that failed among them.
        ratios: each step time over the median of its block; () where they belong to their block.
    """

    blocks: tuple[Block, ...]
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, entry: Entry) -> "Runs":
        """Returns the recorded blocks of a plan; its probe where none ran."""
        blocks = entry.blocks
        if not _ran(blocks) and (measurement := entry.outcome.measurement) is not None:
            times, tokens = measurement.step_times_s, measurement.tokens_per_step
            blocks = (*blocks, Block(at_s=entry.at_s, step_times_s=times, tokens_per_step=tokens))
        ran = _ran(blocks)
        counted = any(block.tokens_per_step is not None for block in ran)
        return cls(blocks, () if counted else tuple(t / median(b.step_times_s) for b in ran for t in b.step_times_s))

    def draw(self, chance: random.Random, may_fail: bool) -> Block:
        """Returns a recorded block; one that failed only if `may_fail`."""
        return chance.choice(self.blocks if may_fail else _ran(self.blocks))

    def step_times_s(self, block: Block, steps: int, slower_log: float, chance: random.Random) -> tuple[float, ...]:
        """Returns drawn step times at the level of `block`, slowed by the exponential of `slower_log`."""
        if not self.ratios:
            return tuple(islice(cycle(time_s * math.exp(slower_log) for time_s in block.step_times_s), steps))
        level = median(block.step_times_s) * math.exp(slower_log)
        return tuple(level * ratio for ratio in chance.choices(self.ratios, k=steps))


def usual_pace(entry: Entry) -> float | None:
    """Returns the median seconds per token, or per sample where tokens are not known; None when no block ran."""
    paces = [pace for block in entry.blocks if (pace := _pace(entry, block)) is not None]
    return median(paces) if paces else None


def _pace(entry: Entry, block: Block) -> float | None:
    units = block.tokens_per_step or entry.plan.global_batch_size
    return median(block.step_times_s) / units if block.step_times_s else None


def _ran(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block.step_times_s)
