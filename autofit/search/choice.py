"""Choice: which measured plans race, which of them wins, and which are on the Pareto front of speed and memory."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from autofit.core.answer import Ratio
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.trial import Trial

MAX_FINALISTS = 4
"""Maximum number of plans that race beside the baseline."""
MIN_FINALISTS, DISTURBED_RATIO = 3, 0.75
"""The `MIN_FINALISTS` fastest plans race in any case, except those below this share of the fastest. On a shared
machine, a probe was 31 % too fast, and the best plan was left out of the race."""
PROBE_NOISE_RATIO = 0.04
"""Standard deviation of the ratio of two separate probes on a calm machine (reference/reliability.md 9.2)."""
DISTURBED_NOISE_RATIO = 0.15
"""Standard deviation of the ratio of two separate probes if the noise of the machine is unknown: on a shared machine a
probe was 31 % too fast (scripts/bench/claims.py)."""
DEVICE_NOISE_RATIO = 0.015
"""The same on an accelerator, which one process uses alone: on an H100, steps of one plan differ by about 1 %."""
TIE_LOSS = 0.75
"""Maximum average cost of a tie, as a share of the tie margin. At 1.0, more searches of scripts/bench/search are off by
over 3 %; at 0.5, fewer races choose the lighter of two equal plans (tests/search/test_race_error_rates.py)."""
SAME_MEMORY_RATIO = 0.01
"""Peaks that differ by less than this share are equal, because readings of one plan differ by as much."""


def finalists(trials: Iterable[Trial], baseline: Plan, objective: Objective, most: int = MAX_FINALISTS) -> list[Trial]:
    """Returns the measured plans that may be the fastest given the noise of probes, best first, at most `most`.

    Included are a few plans whose probe a disturbed machine may have slowed (`MIN_FINALISTS`), and of the plans within
    the tie margin of the fastest the one with the smallest batch. The baseline is added if it was measured, whatever
    its speed.
    """
    if not (measured := ranked(trials, objective)):
        return []
    best = measurement_of(measured[0])
    fastest = objective.score(best)

    def may_win(place: int, trial: Trial) -> bool:
        near = place < MIN_FINALISTS and _rate(trial, objective) >= DISTURBED_RATIO * fastest
        return near or quotient(best, measurement_of(trial), objective).low <= 1

    close = [t for place, t in enumerate(measured) if may_win(place, t)][:most]
    tied = [t for t in measured if fastest <= (1 + objective.tie_ratio) * _rate(t, objective)]
    small = min(tied, key=lambda t: t.plan.global_batch_size)
    if small not in close:
        close[-1] = small
    return close + [t for t in measured if t.plan == baseline and t not in close]


def ranked(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """Returns the latest measured trial of each plan, fastest first."""
    latest = {trial.plan.key: trial for trial in trials if trial.outcome.measured}
    return sorted(latest.values(), key=lambda trial: (-_rate(trial, objective), trial.plan.key))


def measurement_of(trial: Trial) -> Measurement:
    """Returns the measurement of a measured trial.

    Raises:
        ValueError: the trial has none.
    """
    if trial.outcome.measurement is None:
        raise ValueError(f"trial {trial.number} has no measurement; it was {trial.outcome.status.value}")
    return trial.outcome.measurement


def quotient(
    ours: Measurement, theirs: Measurement, objective: Objective, noise_ratio: float = PROBE_NOISE_RATIO
) -> Ratio:
    """Returns the throughput ratio of two separate probes with a 95 % interval, `pairs` 0.

    `noise_ratio` is the standard deviation of such a ratio beyond the spread of the steps within the probes.
    """
    value = objective.score(ours) / objective.score(theirs)
    noise = math.sqrt(noise_ratio**2 + ours.spread_ratio**2 + theirs.spread_ratio**2)
    half = DEVIATIONS_95 * noise
    return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def choose(
    candidates: Sequence[Trial],
    baseline: Plan,
    objective: Objective,
    ratio: Callable[[Trial, Trial], Ratio],
    claim: Callable[[Trial, Trial], Ratio] | None = None,
) -> Trial:
    """Returns the winner: the fastest plan, or the one to prefer among those that tie with it.

    The preference is the baseline's global batch, else the smallest; then less memory; then fewer changes; then speed.
    A gain within the noise does not change the global batch. A candidate that is slower than the baseline beyond the
    noise is never chosen. A leader that is ahead of the baseline by less than the tie margin ties with it, however
    certain that lead is.

    The baseline is among the candidates if it can be recommended. `ratio` returns the throughput of the first over the
    second with its interval, `claim` the same with the interval that is reported, which must exclude 1 for a change of
    the global batch; None for `ratio`.
    """
    claim = claim or ratio
    reference = next((c for c in candidates if c.plan == baseline), None)
    yardstick = reference or candidates[0]

    def fastest(among: Sequence[Trial]) -> Trial:
        return max(among, key=lambda c: ratio(c, yardstick).value if c is not yardstick else 1.0)

    if same := [c for c in candidates if keeps_batch(c.plan, baseline)]:
        first = fastest(same)
        candidates = [c for c in candidates if c in same or claim(c, first).low > 1]
    leader = fastest(candidates)
    tied = [c for c in candidates if c is leader or _as_good(leader, c, baseline, objective, ratio)]
    if reference is not None:
        if leader is not reference and ratio(leader, reference).value < 1 + objective.tie_ratio:
            tied.append(reference)
        tied = [c for c in tied if c is reference or ratio(c, reference).high >= 1]
    return lightest(sorted(tied or [leader], key=lambda c: -ratio(c, leader).value), baseline)


def keeps_batch(plan: Plan, baseline: Plan) -> bool:
    """Returns whether a plan has the global batch of the baseline."""
    return plan.global_batch_size == baseline.global_batch_size


def ties(leader_over_other: Ratio, tie_ratio: float) -> bool:
    """Returns whether the other plan is as good as the leader: not slower beyond the noise, and cheap to choose.

    Its average loss must be below `TIE_LOSS` of the tie margin. A plan with a noisy measurement may be much slower;
    then the one with the better mean wins, however close they are.
    """
    return leader_over_other.low <= 1 and leader_over_other.expected_gain < TIE_LOSS * math.log1p(tie_ratio)


def lightest(tied: Sequence[Trial], baseline: Plan) -> Trial:
    """Returns the plan to prefer: the baseline's global batch or else the smallest, less memory, then fewer changes.

    Peaks that readings cannot separate are equal. Of plans that are alike in all of this, the first is preferred.
    """
    batch = min((not keeps_batch(c.plan, baseline), c.plan.global_batch_size) for c in tied)[1]
    same = [c for c in tied if c.plan.global_batch_size == batch]
    least = min(_peak(c) for c in same)
    light = [c for c in same if not lighter(least, _peak(c))]
    return min(light, key=lambda c: len(c.plan.changes_from(baseline)))


def lighter(ours_bytes: int, theirs_bytes: int) -> bool:
    """Returns whether the first peak is below the second by more than readings of one plan differ."""
    return theirs_bytes > ours_bytes * (1 + SAME_MEMORY_RATIO)


class FrontPoint(NamedTuple):
    """A measured plan, as the front sees it: by its key, its throughput in one unit for all, and its judged peak."""

    key: str
    speed: float
    memory_bytes: int


def front(points: Iterable[FrontPoint], tie_ratio: float) -> list[FrontPoint]:
    """Returns the points that no other dominates, lightest first; each is faster than all before it.

    For every plan left out, one on the front is as fast within the tie margin and needs no more memory, where peaks
    within `SAME_MEMORY_RATIO` are equal. Plans are compared with those that stay, not pair by pair: of ten plans, each
    a little slower and lighter than the one before, pairs would leave only the slowest.
    """
    distinct: list[FrontPoint] = []  # for none, a faster plan needs the same memory or less
    for point in sorted(points, key=lambda point: (-point.speed, point.memory_bytes, point.key)):
        if all(point.memory_bytes * (1 + SAME_MEMORY_RATIO) < faster.memory_bytes for faster in distinct):
            distinct.append(point)
    kept: list[FrontPoint] = []
    for point in reversed(distinct):
        if not kept or point.speed > kept[-1].speed * (1 + tie_ratio):
            kept.append(point)
    return kept


def _as_good(
    leader: Trial, other: Trial, baseline: Plan, objective: Objective, ratio: Callable[[Trial, Trial], Ratio]
) -> bool:
    """Returns whether a plan is as good as the leader: it ties, or has a better batch and loses no more than a tie."""
    ahead = ratio(leader, other)
    better = keeps_batch(other.plan, baseline) or other.plan.global_batch_size < leader.plan.global_batch_size
    changed = not keeps_batch(leader.plan, baseline)
    within = ahead.expected_gain < TIE_LOSS * math.log1p(objective.tie_ratio)
    return ties(ahead, objective.tie_ratio) or (changed and better and within)


def _peak(trial: Trial) -> int:
    return measurement_of(trial).memory.judged_bytes


def _rate(trial: Trial, objective: Objective) -> float:
    return objective.score(measurement_of(trial))
