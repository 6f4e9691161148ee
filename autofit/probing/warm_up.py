"""Warm-up: the first steps of a plan run one by one until their times settle. They are not part of the measurement."""

from collections.abc import Callable, Sequence
from time import perf_counter

from autofit.probing.step_counts import Pace
from autofit.probing.timing_window import WindowResult

SETTLED_RATIO = 0.10
"""Relative difference of two steps in a row at which warm-up ends (reference/reliability.md 9.5). If batches differ in
shape, steps cannot be compared, and warm-up ends when each batch has run once."""
MOST_SKIPPED = 20
"""Number of skipped steps after which a plan is given up. A gradient scaler that starts at 2**16 and halves its scale
at each overflow is below 1 after 17 steps. If it still skips, the scale is not the problem."""


def warm_up(times_s: list[float], run_step: Callable[[int], WindowResult], pace: Pace, cycle: int) -> bool:
    """Runs steps one by one until they settle. Returns whether they did, or whether they did not have to.

    Args:
        times_s: an empty list, which receives the durations of the steps that updated the weights.
        run_step: runs the step of a number, counted from 0. A step that the scaler skipped is run again.
        pace: number and duration of the steps.
        cycle: number of steps after which the batches repeat, if they differ in shape; 1 if all are alike.
    """
    skipped, began = 0, perf_counter()
    while len(times_s) < pace.warmup_most and skipped < MOST_SKIPPED:
        ran = run_step(len(times_s))
        skipped += ran.skipped
        if ran.updated:
            times_s.append(ran.seconds)
        in_time = perf_counter() - began < pace.patience_s
        if not in_time or (len(times_s) >= max(pace.warmup_least, 2) and has_settled(times_s, cycle)):
            break
    return pace.warmup_most < 2 or has_settled(times_s, cycle)


def has_settled(times_s: Sequence[float], cycle: int) -> bool:
    """Returns whether the last two steps took equally long; if batches differ, whether each batch has run once."""
    if cycle > 1:
        return len(times_s) >= cycle
    if len(times_s) < 2:
        return False
    low, high = sorted(times_s[-2:])
    return high - low <= SETTLED_RATIO * high
