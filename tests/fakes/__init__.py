"""A simulated device, a clock that stands still, and a trial log in memory: a search without torch."""

from tests.fakes.bench import MIB, Effect, FakeBench, FakeTime
from tests.fakes.estimators import Fixed
from tests.fakes.faults import always, during
from tests.fakes.guarding import notes, unguarded
from tests.fakes.log import MemoryLog
from tests.fakes.opened import OpenedBench, briefing_of, opened
from tests.fakes.problems import CHECKPOINT, FORMAT, KNOBS, OPTIMIZER, PRECISION, random_bench, small_bench, space_of
from tests.fakes.tuning import tuning_of

__all__ = [
    "CHECKPOINT",
    "FORMAT",
    "KNOBS",
    "MIB",
    "OPTIMIZER",
    "PRECISION",
    "Effect",
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
    "random_bench",
    "small_bench",
    "space_of",
    "tuning_of",
    "unguarded",
]
