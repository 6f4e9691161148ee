"""New shapes: how much longer a micro batch takes whose shape the process has not seen before.

Libraries prepare kernels for each shape, and oneDNN generates code for some. A probe repeats a few batches, which hides
that cost; a training whose batches nearly all differ in shape pays it at each of them. On a graph network, bf16 ran at
1.25x the speed of float32 over repeated batches on a CPU, and at 0.86x in training.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from time import perf_counter

from autofit.probing.timing_window import WindowResult
from autofit.workloads.tree import Batch

LEAST_PAIRS, MOST_PAIRS = 3, 8
"""Minimum and maximum number of fresh micro batches that run."""
SECONDS = 1.0
"""No further micro batch runs after this time, once the minimum has run."""
LEAST_RATIO = 0.05
"""Smallest extra time that counts, as a share of the second run. The median of 8 differences of runs that vary by 3 %
each has a standard error of 2 %, which would otherwise be charged to plans without any extra time."""


def new_shape_s(run: Callable[[Batch], WindowResult], fresh: Iterator[Batch]) -> float:
    """Returns how many seconds longer a micro batch takes the first time than the second time; 0 if that is noise.

    Each micro batch runs twice in a row, so that neither its size nor the drift of the machine counts.

    Args:
        run: runs a step of one micro batch.
        fresh: batches of new shapes.
    """
    extra_s, again_s, began = list[float](), list[float](), perf_counter()
    for batch in islice(fresh, MOST_PAIRS):
        first, second = run(batch), run(batch)
        if first.updated and second.updated:
            extra_s.append(first.seconds - second.seconds)
            again_s.append(second.seconds)
        if len(extra_s) >= LEAST_PAIRS and perf_counter() - began > SECONDS:
            break
    if len(extra_s) < LEAST_PAIRS or median(extra_s) < LEAST_RATIO * median(again_s):
        return 0.0
    return median(extra_s)
