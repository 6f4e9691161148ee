"""Noise between nights: simulated, or recorded in the tables of `tests/data/tables`."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.levels import MAD_SCALE
from scripts.bench.search.replay import TableBench
from scripts.bench.search.replay.table import Table, read_table

RECORDED = Path(__file__).resolve().parents[3] / "tests" / "data" / "tables"
OUTLIERS = 0.03
"""Share of readings that are slow outliers (reference/ecosystem.md 7.2)."""
LEAST_SLOWER, MOST_SLOWER = 0.03, 0.12
"""Bounds of the slowdown of an outlier. They give the rules of reference/ecosystem.md 7.2 about the false alarms that
are listed there."""
ROUNDS = 3
"""Number of blocks of a plan in one reading."""
DRAWN = 4000
"""Number of nights that are drawn from each recorded table; simulated years draw from these."""

Pair = tuple[float, float]
"""First and second reading of a night, relative to the level of the job."""


@dataclass(frozen=True)
class Noise:
    """Where the readings of simulated nights come from.

    Attributes:
        name: description in a few words.
        shared: whether the two readings of a night share half of their noise.
        year: returns the function that draws the nights of one year.
    """

    name: str
    shared: bool
    year: Callable[[random.Random], Callable[[], Pair]]


def simulated(deviation: float, shared: bool) -> Noise:
    """Returns normal noise with slow outliers.

    Args:
        deviation: standard deviation of a reading without outliers, as a share.
        shared: whether half of the variance is that of the night, and half of the outliers last the whole night.
    """

    def outlier(chance: random.Random) -> float:
        return chance.uniform(LEAST_SLOWER, MOST_SLOWER) if chance.random() < OUTLIERS else 0.0

    def night(chance: random.Random) -> Pair:
        first, second = chance.gauss(0, deviation), chance.gauss(0, deviation)
        slower, slower_again = outlier(chance), outlier(chance)
        if shared:
            common, half = chance.gauss(0, deviation), math.sqrt(0.5)
            first, second = half * (common + first), half * (common + second)
            slower_again = slower if chance.random() < 0.5 else slower_again
        return 1 + first - slower, 1 + second - slower_again

    return Noise(f"simulated {deviation:.0%}", shared, lambda chance: lambda: night(chance))


def tables() -> list[Table]:
    """Returns the recorded tables."""
    return [read_table(path.read_text(encoding="utf-8"), path.name) for path in sorted(RECORDED.glob("*.json"))]


def recorded(table: Table, shared: bool) -> Noise:
    """Returns the noise of the plan with the most blocks in a table.

    Args:
        table: the recorded table.
        shared: whether the second reading follows the first one at once. Otherwise it is made at another moment of the
            recording, as by a night that measures its other jobs in between.
    """
    pairs = drawn(table, shared)
    return Noise(f"recorded, {table.name}", shared, lambda chance: lambda: chance.choice(pairs))


def scaled(found: Sequence[Table], deviation: float, shared: bool) -> Noise:
    """Returns the noise of all tables, a table for each year, with its spread scaled to a standard deviation."""
    pools = []
    for table in found:
        pairs = drawn(table, shared)
        spread = MAD_SCALE * median(abs(first - 1) for first, _ in pairs)
        times = deviation / spread
        pools.append([(1 + (first - 1) * times, 1 + (second - 1) * times) for first, second in pairs])

    def year(chance: random.Random) -> Callable[[], Pair]:
        pool = chance.choice(pools)
        return lambda: chance.choice(pool)

    return Noise(f"recorded, scaled to {deviation:.0%}", shared, year)


def drawn(table: Table, shared: bool, count: int = DRAWN) -> list[Pair]:
    """Returns the readings of nights with recorded noise, relative to their median."""
    bench, objective = TableBench(table), table.objective
    plan = max(table.entries, key=lambda entry: sum(not block.reason for block in entry.blocks)).plan

    def reading() -> float:
        found: list[float] = []
        while len(found) < ROUNDS:
            measurement = bench.evaluate(plan, Purpose.BLOCK).measurement
            found += [] if measurement is None else [objective.score(measurement)]
        return median(found)

    pairs = []
    for seed in range(count):
        bench.rewind(seed)
        first = reading()
        if not shared:
            bench.rewind(count + seed)
        pairs.append((first, reading()))
    middle = median(first for first, _ in pairs)
    return [(first / middle, second / middle) for first, second in pairs]


def measured_plan(table: Table) -> Plan:
    """Returns the plan whose noise is drawn: the one with the most blocks that ran."""
    return max(table.entries, key=lambda entry: sum(not block.reason for block in entry.blocks)).plan
