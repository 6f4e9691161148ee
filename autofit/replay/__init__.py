"""Replay: a device that is a recorded table, so that a whole search is scored without hardware.

It stands beside the loop and not in `probing`, which runs things: here nothing runs. The loop meets it as the function
`evaluate`, a clock and an estimator, as it meets a real device.
"""

from autofit.replay.bench import TableBench, VirtualTime
from autofit.replay.estimator import TableEstimator, peaks_of
from autofit.replay.limits import limited
from autofit.replay.noise import Bursts

__all__ = ["Bursts", "TableBench", "TableEstimator", "VirtualTime", "limited", "peaks_of"]
