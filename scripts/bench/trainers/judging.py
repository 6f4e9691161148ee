"""From the blocks of a case to ratios with intervals, and to the verdict."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autofit.core.recommendation import Ratio
from autofit.search.race import pair

TOLERANCE = 0.05
"""Largest difference from a promise that needs no explanation."""


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Times of a few steps that ran in a row, in seconds for each step.

    Attributes:
        wall_s: whole step, its batch included.
        cpu_s: CPU time of the process meanwhile.
        work_s: what the plan was measured for. Of the prepared step, the call alone; of a trainer, what remains of its
            time without the overhead that the integration reports. None if it reports none.
    """

    wall_s: float
    cpu_s: float
    work_s: float | None


@dataclass(frozen=True, slots=True)
class TrainerSpeed:
    """What the blocks of a case show. All ratios are of throughputs, so that a slower trainer is below 1.

    Attributes:
        prepared: the trainer over the loop `for batch in step.loader: step(batch)`, wall clock.
        prepared_cpu: the same by CPU time.
        promise: the trainer over the throughput that the plan file promises.
        drift: the prepared step now over that, each without its batches: what has changed since the plan was proven.
        promise_now: the trainer over the prepared step now, without the batches of that: `promise` without the drift.
        explained: `promise_now` without the overhead that the integration reports; None if it reports none.
    """

    prepared: Ratio
    prepared_cpu: Ratio
    promise: Ratio
    drift: Ratio
    promise_now: Ratio
    explained: Ratio | None

    @property
    def verdict(self) -> str:
        """Returns "within 5 %", "explained" or "MISSED"."""
        if holds(self.promise_now):
            return f"within {100 * TOLERANCE:.0f} %"
        return "explained" if self.explained is not None and holds(self.explained) else "MISSED"

    @property
    def ok(self) -> bool:
        """Whether the trainer is as fast as promised, or its reported overhead explains the difference."""
        return self.verdict != "MISSED"

    def figures(self) -> dict[str, Any]:
        """Returns the ratios for a file."""
        ratios = {name: getattr(self, name) for name in self.__slots__}
        found = {name: None if ratio is None else ratio.model_dump() for name, ratio in ratios.items()}
        return {**found, "verdict": self.verdict, "ok": self.ok}

    def lines(self) -> list[str]:
        """Returns the ratios in words."""
        without = "none is reported" if self.explained is None else shown(self.explained)
        return [
            f"trainer / prepared loop: {shown(self.prepared)}, by CPU time {shown(self.prepared_cpu)}",
            f"trainer / promise: {shown(self.promise)}; prepared step now / promise: {shown(self.drift)}",
            f"trainer / prepared step now: {shown(self.promise_now)}; without its reported overhead: {without}",
        ]


def holds(ratio: Ratio) -> bool:
    """Returns whether the whole interval is within the tolerance."""
    return ratio.low >= 1 - TOLERANCE and ratio.high <= 1 + TOLERANCE


def shown(ratio: Ratio) -> str:
    """Returns a ratio with its interval."""
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def found(trainer: Sequence[BlockTimes], prepared: Sequence[BlockTimes], promised_s: float) -> TrainerSpeed:
    """Returns what the blocks show.

    Args:
        trainer: blocks of the trainer; each ran next to the one of `prepared` with the same number.
        prepared: blocks of the prepared step.
        promised_s: seconds of a step that the plan promises.

    Raises:
        ValueError: fewer than two pairs, or a block of the prepared step has no time of the call alone.
    """
    alone, work = [each.work_s for each in prepared], [each.work_s for each in trainer]
    promise, wall = [promised_s] * len(prepared), [each.wall_s for each in trainer]
    return TrainerSpeed(
        prepared=_ratio(wall, [each.wall_s for each in prepared]),
        prepared_cpu=_ratio([each.cpu_s for each in trainer], [each.cpu_s for each in prepared]),
        promise=_ratio(wall, promise),
        drift=_ratio(alone, promise),
        promise_now=_ratio(wall, alone),
        explained=None if None in work else _ratio(work, alone),
    )


def _ratio(ours_s: Sequence[float | None], theirs_s: Sequence[float | None]) -> Ratio:
    """Returns the ratio of throughputs from the seconds of each step in pairs of blocks."""
    return pair(_logs(ours_s), _logs(theirs_s)).ratio()


def _logs(seconds: Sequence[float | None]) -> list[float]:
    if None in seconds:
        raise ValueError("a block has no time of its work")
    return [-math.log(each) for each in seconds if each is not None]


def as_figures(blocks: Sequence[BlockTimes]) -> list[dict[str, Any]]:
    """Returns blocks for a file."""
    return [asdict(each) for each in blocks]
