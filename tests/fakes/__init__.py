"""A search without torch: the simulated device of `scripts.bench.search.simulated`, and what tests need beside it."""

from scripts.bench.search.replay import VirtualTime
from scripts.bench.search.simulated import MIB, Effect, FakeBench, MemoryLog, always, during, space_of
from tests.fakes.estimators import Estimates, Fixed
from tests.fakes.guarding import notes, unguarded
from tests.fakes.opened import OpenedBench, briefing_of, opened
from tests.fakes.problems import CHECKPOINT, FORMAT, KNOBS, OPTIMIZER, PRECISION, random_bench, small_bench
from tests.fakes.searching import problem_of, tell
from tests.fakes.tuning import tuning_of

FakeTime = VirtualTime

__all__ = [
    "CHECKPOINT",
    "FORMAT",
    "KNOBS",
    "MIB",
    "OPTIMIZER",
    "PRECISION",
    "Effect",
    "Estimates",
    "FakeBench",
    "FakeTime",
    "Fixed",
    "MemoryLog",
    "OpenedBench",
    "always",
    "briefing_of",
    "during",
    "notes",
    "opened",
    "problem_of",
    "random_bench",
    "small_bench",
    "space_of",
    "tell",
    "tuning_of",
    "unguarded",
]
