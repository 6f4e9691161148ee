"""Years of nights of one job, decided by the code that decides real nights."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from autofit.nightly.levels import Decision, Level, NightReading, decide
from autofit.nightly.records import Verdict, VerdictKind
from scripts.bench.nightly.noise import Noise

RATE_PER_S, PEAK_BYTES = 100.0, 10.0 * 2**30
LEAST_BEFORE, MOST_BEFORE = 30, 120
"""Number of nights before a planted change; drawn for each year."""

NO_CLAIM = Verdict(kind=VerdictKind.STEADY, reason="")

Change = Callable[[int], float]
"""Factor on a measure in each night since a change was planted, which is night 1."""


def unchanged(night: int) -> float:
    """No change."""
    return 1.0


def drop(share: float) -> Change:
    """Returns a throughput that is lower by a share from one night to the next."""
    return lambda night: 1 - share if night > 0 else 1.0


def growth(share: float) -> Change:
    """Returns a measure that grows by a share of its level each night; it shrinks if the share is negative."""
    return lambda night: 1 + share * max(night, 0)


@dataclass(frozen=True)
class Nights:
    """The nights of a job.

    Attributes:
        noise: noise of its throughput.
        memory_noise: standard deviation of its peak, as a share.
        rate: planted change of throughput.
        memory: planted change of the peak.
    """

    noise: Noise
    memory_noise: float = 0.0
    rate: Change = unchanged
    memory: Change = unchanged

    def readings(self, chance: random.Random, before: int) -> Iterator[tuple[NightReading, NightReading]]:
        """Yields first and second readings, of which the first `before` nights are without the planted change."""
        night = self.noise.year(chance)
        for number in count(1 - before):
            rate, peak = RATE_PER_S * self.rate(number), PEAK_BYTES * self.memory(number)
            first, second = night()
            peaks = [round(peak * chance.gauss(1, self.memory_noise)) for _ in range(2)]
            yield NightReading(rate * first, peaks[0]), NightReading(rate * second, peaks[1])

    def decisions(self, chance: random.Random, before: int) -> Iterator[Decision | None]:
        """Yields what is claimed of each night; None while it cannot be compared."""
        level = Level()
        for number, (first, second) in enumerate(self.readings(chance, before)):
            if level.missing_nights:
                level.add(str(number), first, first, NO_CLAIM)
                yield None
                continue
            decision = decide(level, first, lambda second=second: second)  # type: ignore[misc]
            level.add(str(number), first, decision.second or first, _verdict(decision))
            yield decision

    def found_after(self, chance: random.Random, most: int, before: int | None = None) -> int | None:
        """Returns the number of nights until a regression is claimed; None if it is not within `most` nights."""
        if before is None:
            before = chance.randint(LEAST_BEFORE, MOST_BEFORE)
        decisions = self.decisions(chance, before)
        for _ in range(before):
            next(decisions)
        claimed = (night for night in range(1, most + 1) if regressed(next(decisions)))
        return next(claimed, None)


def regressed(decision: Decision | None) -> bool:
    """Returns whether a night is called a regression."""
    return decision is not None and (decision.rate.side < 0 or decision.memory.side > 0)


def _verdict(decision: Decision) -> Verdict:
    """Returns what is claimed of a night as the history holds it."""
    rate, memory = decision.rate, decision.memory
    return NO_CLAIM.model_copy(
        update={
            "moved": decision.moved,
            "since": rate.since,
            "evidence_nights": decision.evidence_nights,
            "expected_per_s": rate.band.expected,
            "expected_bytes": memory.band.expected,
        }
    )
