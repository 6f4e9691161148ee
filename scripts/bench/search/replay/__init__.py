"""Replay: a recorded table as a virtual device, so that a whole search is scored without hardware.

No step runs here, so this is not part of `probing`. A search uses it like a real device: through the function
`evaluate`, a clock and an estimator.
"""

from scripts.bench.search.replay.bench import TableBench, VirtualTime, gone_on
from scripts.bench.search.replay.estimator import TableEstimator, peaks_of
from scripts.bench.search.replay.limits import limited
from scripts.bench.search.replay.noise import Bursts

__all__ = ["Bursts", "TableBench", "TableEstimator", "VirtualTime", "gone_on", "limited", "peaks_of"]
