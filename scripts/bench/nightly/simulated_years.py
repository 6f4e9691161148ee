"""False alarms and missed regressions of the nightly rule, over simulated years of one job.

    python -m scripts.bench.nightly.simulated_years [--years 1000] [--json FILE]

Each year has 365 nights with normal noise and slow outliers, see `noise.py`; two readings of a night have independent
noise, or share half of it. Changes are planted after 30 to 120 nights. It ends with exit code 1 if a limit is exceeded;
the limits apply to independent noise.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.bench.nightly.noise import Noise, scaled, simulated, tables
from scripts.bench.nightly.years import Nights, drop, growth, regressed

NIGHTS = 365
MOST_FALSE = 0.3
"""Limit on false alarms in 100 nights."""
LEAST_FOUND = 0.8
"""Least share of years in which a drop of 5 % is found: the first night with 1 % noise, within three with 2 %."""
GROWTH_NIGHTS = 7
"""Nights within which a growth of memory of 1 % a night must be found, in every year."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        noise: the noise.
        shared: whether the two readings of a night share half of it.
        what: what was measured.
        value: the figure.
        limit: its limit; None if none applies.
        least: whether the limit is a lower one.
    """

    noise: str
    shared: bool
    what: str
    value: float
    limit: float | None = None
    least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.least else self.value <= self.limit


def false_alarms(noise: Noise, years: int) -> float:
    """Returns the number of false alarms in 100 nights. A regression that stays open counts each night."""
    alarms = 0
    for seed in range(years):
        decisions = Nights(noise).decisions(random.Random(f"{noise.name} {seed}"), NIGHTS)
        alarms += sum(regressed(next(decisions)) for _ in range(NIGHTS))
    return 100 * alarms / (years * NIGHTS)


def found(nights: Nights, years: int, within: int) -> float:
    """Returns the share of years in which a planted change is found within a number of nights."""
    hits = [nights.found_after(random.Random(f"{nights.noise.name} {seed}"), within) for seed in range(years)]
    return sum(hit is not None for hit in hits) / years


def figures(years: int) -> list[Figure]:
    """Returns all figures.

    Args:
        years: number of simulated years for each.
    """
    recorded = tables()
    every = [
        figure
        for shared in (False, True)
        for deviation in (0.01, 0.02)
        for noise in (simulated(deviation, shared), scaled(recorded, deviation, shared))
        for figure in of_throughput(noise, deviation, years)
    ]
    return [*every, *of_memory(years)]


def of_throughput(noise: Noise, deviation: float, years: int) -> list[Figure]:
    """Returns false alarms and found drops with a kind of noise, whose standard deviation is `deviation`."""
    slower, within = Nights(noise, rate=drop(0.05)), 1 if deviation == 0.01 else 3
    most, least = (None, None) if noise.shared else (MOST_FALSE, LEAST_FOUND)
    text = f"5 % drop found within {within} night{'s' if within > 1 else ''}"
    return [
        Figure(noise.name, noise.shared, "false alarms in 100 nights", false_alarms(noise, years), most),
        Figure(noise.name, noise.shared, text, found(slower, years, within), least, least=True),
    ]


def of_memory(years: int) -> list[Figure]:
    """Returns how soon growth of memory is found."""
    every = list[Figure]()
    calm = simulated(0.01, False)
    for memory_noise in (0.0, 0.002):
        grown = Nights(calm, memory_noise, memory=growth(0.01))
        text = f"memory growth of 1 % a night found within {GROWTH_NIGHTS} nights, memory noise {memory_noise:.1%}"
        every.append(Figure(calm.name, False, text, found(grown, years, GROWTH_NIGHTS), 0.99, least=True))
    slow = Nights(calm, 0.002, memory=growth(0.002))
    text = "memory growth of 0.2 % a night found within 30 nights, memory noise 0.2%"
    every.append(Figure(calm.name, False, text, found(slow, years, 30), 0.99, least=True))
    return every


def _line(figure: Figure) -> str:
    limit = "" if figure.limit is None else f"  {'at least' if figure.least else 'at most'} {figure.limit:g}"
    readings = "half-shared" if figure.shared else "independent"
    failed = "" if figure.holds else "  FAILED"
    return f"{figure.noise:24} {readings:12} {figure.what:84} {figure.value:.3f}{limit}{failed}"


def main(words: Sequence[str] | None = None) -> int:
    """Prints the figures. Returns 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.nightly.simulated_years", description=__doc__)
    parser.add_argument("--years", type=int, default=1000, help="years for each figure (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    given = parser.parse_args(words)
    every = figures(given.years)
    for each in every:
        print(_line(each))
    if given.json is not None:
        found = {"years": given.years, "figures": [asdict(each) for each in every]}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(not all(each.holds for each in every))


if __name__ == "__main__":
    sys.exit(main())
