"""Host meter: the peak of live tensors on the CPU, from the allocation record of torch's legacy profiler.

Operators are left out of the record, and it is read and dropped whenever `drain` is called, so that it stays small
however long a step is: about 0.6 kB for each allocation and each release since the last call. With operators, and read
only at the end, 24 micro batches of a small GRU took 8.6 GB and nine times the time of the steps.
"""

from itertools import accumulate
from operator import methodcaller

import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

_autograd = torch._C._autograd
_usage_bytes = methodcaller("cpu_memory_usage")  # of an event; 0 for those that are not of memory


class HostMeter:
    """Adds up what torch's CPU allocator gives and takes back in this thread between `start` and `stop`.

    Releases of what was there before the start are not in the record.

    Attributes:
        peak_bytes: the highest sum of allocations less releases so far. Threads are added up, each with its highest sum
            since the last `drain`, which is an upper bound.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0

    def start(self) -> None:
        """Begins to record. Only one record can be made at a time in a thread."""
        # Neither shapes, nor stacks, nor operation counts: memory alone.
        _autograd._enable_profiler_legacy(
            ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
        )
        _autograd._enable_record_function(False)

    def drain(self) -> None:
        """Works off the record made so far and goes on with an empty one; takes some microseconds beside that."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Ends the record and works it off."""
        try:
            threads = _autograd._disable_profiler_legacy()
        finally:
            _autograd._enable_record_function(True)
        peak = live = self._live_bytes
        for thread in threads:
            sums = list(accumulate(map(_usage_bytes, thread), initial=0))
            peak += max(sums)
            live += sums[-1]
        self._live_bytes = live
        self.peak_bytes = max(self.peak_bytes, peak)
