"""The levels of a job: how far tonight's readings may be from the nights before, and which nights those are.

A reading outside its band is a suspicion. Nothing is claimed until a second reading of the same night confirms it. A
constant without another source was chosen by simulation: `python -m scripts.bench.nightly.simulated_years` plays 1,000
years, and fails if there are more than 0.3 false alarms in 100 nights or if too many changes are found too late.

A change that was reported never becomes normal unnoticed:

* A regression is reported each night until the job is back at its level, a person accepts the new level, or the segment
  changes, for example with another plan. Its nights are not in the reference.
* A job that became faster is reported as such for `LEAST_NIGHTS` nights, which then are the reference.
* A night that was suspicious and not confirmed counts with its second reading.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple, Self

from autofit.nightly.records import Moved, Verdict

LEAST_NIGHTS = 5
"""Number of nights of a segment before a night is compared with them."""
WINDOW = 14
"""Number of nights whose median is the expected value."""
DEVIATIONS = 2.5
"""Half the width of the band of one night, in standard deviations of a night."""
LEAST_CHANGE = 0.02
"""Least half width of a band, as a share of the expected value: the tie margin of a race (`TIE_RATIO`)."""
NOISE_WINDOW = 60
"""Number of latest nights from which the noise is estimated. With 14 nights there are three times the false alarms."""
FEW_NIGHTS = 4.0
"""An estimate of the noise from n nights is multiplied by 1 + 4 / n: few nights underestimate it."""
CLIP = 5.0
"""Distance from the median to which outliers are clipped, in scaled median absolute deviations. The tails of recorded
noise are heavier than those of a normal distribution."""
RUN = 3
"""Number of nights, tonight included, that are judged together: their mean shows what the noise of one night hides."""
RUN_DEVIATIONS = 2.1
"""Distance of the mean of a run from the nights before that is a suspicion, in standard deviations of this distance."""
RUN_CONFIRMED = 2.85
"""Distance that confirms a run, in the same unit, for the mean of its nights and the second reading of tonight."""
RUN_EACH = 0.5
"""Least distance of each of these readings, in standard deviations of a night: a single outlier is not a run."""

FAMILIAR = 3
"""Number of nights with an unconfirmed higher peak after which that peak is inside the band. Kernels that are chosen
anew in each process give a workload several peaks."""
MAD_SCALE = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""
MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of many normal values, relative to the variance of their mean."""
_SMALL_SAMPLES = (1.0, 1.0, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""Correction of the median absolute deviation of up to nine values, by their number; n / (n - 0.8) for more (Croux and
Rousseeuw, Time-efficient algorithms for two highly robust estimators of scale, 1992)."""


@dataclass(frozen=True, slots=True)
class Band:
    """Where the value of a night is expected: the expected value, its limits, and the number of nights behind it."""

    expected: float
    low: float
    high: float
    nights: int

    def around(self, expected: float) -> Self:
        """Returns the band moved to another expected value."""
        moved = expected - self.expected
        return type(self)(expected, self.low + moved, self.high + moved, self.nights)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A change that the first reading of a night shows, and what a second reading must show to confirm it.

    Attributes:
        side: 1 if the value is higher than expected, -1 if it is lower.
        limit: a second reading confirms the change if it is beyond this value on that side.
        expected: the value that the evidence was compared with.
        shown: the value that the evidence shows: the reading, or the mean of the nights.
        nights: number of nights of evidence, tonight included.
        before: number of nights behind the expected value.
    """

    side: int
    limit: float
    expected: float
    shown: float
    nights: int
    before: int

    def confirmed(self, reading: float) -> bool:
        """Returns whether a second reading confirms the change."""
        return self.side * (reading - self.limit) > 0


def deviation(values: Sequence[float]) -> float:
    """Returns the standard deviation of nights: their scaled median absolute deviation, or that of clipped nights.

    The larger of the two is taken. The first one is robust, but is too small where the tails are heavy.
    """
    count = len(values)
    if count < 2:
        return 0.0
    level = clipped(values)
    mean = fmean(level)
    moment = math.sqrt(sum([(value - mean) ** 2 for value in level]) / (count - 1))
    return max(_scaled_mad(values), moment) * (1 + FEW_NIGHTS / count)


def clipped(values: Sequence[float]) -> list[float]:
    """Returns the values, clipped to within `CLIP` scaled median absolute deviations of their median."""
    middle, half = median(values), CLIP * _scaled_mad(values)
    return [max(middle - half, min(middle + half, value)) for value in values]


def _scaled_mad(values: Sequence[float]) -> float:
    middle, count = median(values), len(values)
    unbiased = _SMALL_SAMPLES[count] if count < len(_SMALL_SAMPLES) else count / (count - 0.8)
    return MAD_SCALE * unbiased * median([abs(value - middle) for value in values])


def deviation_of_steps(values: Sequence[float]) -> float:
    """Returns the standard deviation of nights around a trend, from the differences of successive nights.

    A steady growth does not increase it. The idea is that of von Neumann (Distribution of the ratio of the mean square
    successive difference to the variance, 1941), with the median absolute deviation in place of the mean square.
    """
    steps = [after - before for before, after in pairwise(values)]
    return deviation(steps) / math.sqrt(2) if len(steps) > 1 else 0.0


def throughput_band(reference: Sequence[float]) -> Band:
    """Returns the band of one night's throughput, from the earlier nights of its level, oldest first."""
    latest = reference[-WINDOW:]
    expected = median(latest)
    half = max(DEVIATIONS * deviation(reference[-NOISE_WINDOW:]), LEAST_CHANGE * expected)
    return Band(expected, max(expected - half, 0.0), expected + half, len(latest))


def memory_band(reference: Sequence[float], highest: Sequence[float]) -> Band:
    """Returns the band of one night's peak.

    It does not roll. The expected peak is the median of the first nights, so that slow growth adds up. The noise comes
    from the differences between nights, because growth widens other measures of noise.

    Args:
        reference: peak of each earlier night of the level, oldest first.
        highest: the `FAMILIAR` highest peaks of these nights, unconfirmed ones included, in ascending order.
    """
    first = reference[:WINDOW]
    expected = median(first)
    spread = deviation_of_steps(reference[-NOISE_WINDOW:]) * math.sqrt(1 + MEDIAN_VARIANCE / len(first))
    half = max(DEVIATIONS * spread, LEAST_CHANGE * expected)
    return Band(expected, expected - half, max(expected + half, highest[0]), len(first))


def throughput_suspicions(reference: Sequence[float], band: Band, reading: float) -> list[Suspicion]:
    """Returns the changes that a reading of throughput shows, the clearest first.

    Only a night outside its band is suspected of being faster: nobody has to act the same night.
    """
    return [each for each in (_night(band, reading), _run(reference, reading)) if each is not None]


def memory_suspicions(band: Band, reading: float) -> list[Suspicion]:
    """Returns the growth that a reading of the peak shows."""
    found = _night(band, reading)
    return [found] if found is not None and found.side > 0 else []


def _night(band: Band, reading: float) -> Suspicion | None:
    """Judges one night against its band."""
    if band.low <= reading <= band.high:
        return None
    side, limit = (1, band.high) if reading > band.high else (-1, band.low)
    return Suspicion(side, limit, band.expected, reading, nights=1, before=band.nights)


def _run(reference: Sequence[float], reading: float) -> Suspicion | None:
    """Judges the latest nights together: whether they are slower than the nights before them."""
    before = reference[: 1 - RUN][-NOISE_WINDOW:]
    if len(before) < LEAST_NIGHTS:
        return None
    level, together = clipped(before), (*reference[1 - RUN :], reading)
    expected = fmean(level)
    least = LEAST_CHANGE * expected
    if expected - fmean(together) <= least:  # the usual case, in which the noise need not be estimated
        return None
    noise = deviation(before)
    each, lowest = expected - RUN_EACH * noise, expected - DEVIATIONS * noise
    inside = [max(value, lowest) for value in together]
    suspicious = expected - max(RUN_DEVIATIONS * _spread(noise, RUN, len(before)), least)
    sure = expected - max(RUN_CONFIRMED * _spread(noise, RUN + 1, len(before)), least)
    limit = min((RUN + 1) * sure - sum(inside), each)
    if fmean(inside) >= suspicious or max(together) >= each or limit <= lowest:
        return None
    return Suspicion(-1, limit, expected, fmean(inside), nights=RUN, before=len(before))


def _spread(noise: float, nights: int, before: int) -> float:
    """Returns the standard deviation of the difference between the means of some nights and of those before."""
    return noise * math.sqrt(1 / nights + 1 / before)


class NightReading(NamedTuple):
    """One measurement of a plan: throughput and peak."""

    rate_per_s: float
    peak_bytes: float


@dataclass(slots=True)
class Track:
    """One measure over the nights of a segment: the values of its level and of the open change, oldest first.

    A change is open while `side` is not 0. `expected` is what it was compared with when it began.
    """

    reference: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    side: int = 0
    expected: float = 0.0
    since: str = ""

    def add(self, value: float) -> None:
        """Adds a night without a change, which ends an open one."""
        self.reference.append(value)
        self._close()

    def add_changed(self, value: float, side: int, expected: float, since: str, evidence_nights: int = 1) -> None:
        """Adds a night of a change. If it is the first one, the earlier nights of its evidence leave the reference."""
        if side != self.side:
            self._close()
            self.side, self.expected, self.since = side, expected, since
            if (moved := min(evidence_nights, len(self.reference)) - 1) > 0:
                self.changed = self.reference[-moved:]
                del self.reference[-moved:]
        self.changed.append(value)

    def accept(self) -> None:
        """Makes the nights of the open change the reference.

        If they are fewer than a window, earlier nights are moved to their level and kept, so that the noise is known.
        """
        ratio = median(self.changed) / self.expected
        kept = self.reference[-NOISE_WINDOW:] if len(self.changed) < WINDOW else []
        self.reference = [ratio * value for value in kept] + self.changed
        self._close()

    def back(self, band: Band, reading: float) -> list[Suspicion]:
        """Returns the suspicion that the open change ended: two readings are together closer to the level before it."""
        inside = reading >= band.low if self.side < 0 else reading <= band.high
        if not inside:
            return []
        limit = self.expected + median(self.changed[-WINDOW:]) - reading
        return [Suspicion(-self.side, limit, self.expected, reading, nights=1, before=band.nights)]

    def _close(self) -> None:
        self.changed, self.side, self.since = [], 0, ""


@dataclass(slots=True)
class Level:
    """The earlier nights of a segment, as tonight is compared with them.

    `highest` are the `FAMILIAR` highest peaks of nights without a claim on memory, in ascending order.
    """

    rate: Track = field(default_factory=Track)
    memory: Track = field(default_factory=Track)
    highest: list[float] = field(default_factory=list)

    @property
    def missing_nights(self) -> int:
        """Number of further nights that are needed before a night can be compared."""
        return max(LEAST_NIGHTS - min(len(self.rate.reference), len(self.memory.reference)), 0)

    def add(self, night: str, first: NightReading, second: NightReading, verdict: Verdict) -> None:
        """Adds the next night, with what was claimed of it. Without a second reading, the first one is given twice."""
        if "slower" in verdict.moved or "faster" in verdict.moved:
            side, expected = -1 if "slower" in verdict.moved else 1, verdict.expected_per_s or second.rate_per_s
            self.rate.add_changed(second.rate_per_s, side, expected, verdict.since or night, verdict.evidence_nights)
            if side > 0 and len(self.rate.changed) >= LEAST_NIGHTS:
                self.rate.accept()
        else:
            self.rate.add(second.rate_per_s)
        if "more memory" in verdict.moved:
            self.memory.add_changed(second.peak_bytes, 1, verdict.expected_bytes or second.peak_bytes, night)
        else:
            self.memory.add(second.peak_bytes)
            self._renew_peaks(max(first.peak_bytes, second.peak_bytes))

    def _renew_peaks(self, peak_bytes: float) -> None:
        self.highest = sorted((*self.highest, peak_bytes))[-FAMILIAR:]
        latest = self.memory.reference[-LEAST_NIGHTS:]
        lower = max(latest) < (1 - LEAST_CHANGE) * median(self.memory.reference[:WINDOW])
        if lower and len(latest) == LEAST_NIGHTS:  # a new level, so that later growth is seen
            self.memory.reference, self.highest = latest, sorted(latest)[-FAMILIAR:]

    def accept(self) -> None:
        """Makes the level of an open regression the reference, because a person accepted it."""
        if self.rate.side < 0:
            self.rate.accept()
        if self.memory.side:
            self.memory.accept()
            self.highest = sorted(self.memory.reference)[-FAMILIAR:]


class Ruling(NamedTuple):
    """What is claimed of one measure tonight.

    Attributes:
        side: 1 if it is higher than its level, -1 if it is lower, 0 if no change is claimed.
        band: the band of one night around the value that tonight was compared with.
        suspicion: the suspicion that was confirmed, or else the first one that was not; None if there was none.
        since: first night of the change that was open before tonight; "" if there was none.
    """

    side: int
    band: Band
    suspicion: Suspicion | None
    since: str = ""

    @property
    def begins(self) -> bool:
        """Whether a change is claimed that was not open before."""
        return self.side != 0 and not self.since


class Decision(NamedTuple):
    """What is claimed of tonight, and the second reading; None if none was needed or it did not run."""

    rate: Ruling
    memory: Ruling
    second: NightReading | None

    @property
    def moved(self) -> tuple[Moved, ...]:
        """What is claimed to be outside its band."""
        rate: tuple[Moved, ...] = ("slower" if self.rate.side < 0 else "faster",) if self.rate.side else ()
        return (*rate, "more memory") if self.memory.side else rate

    @property
    def evidence_nights(self) -> int:
        """Number of nights that are together the evidence for a new change of throughput."""
        suspicion = self.rate.suspicion if self.rate.begins else None
        return 1 if suspicion is None else suspicion.nights


def decide(level: Level, tonight: NightReading, confirm: Callable[[], NightReading | None]) -> Decision:
    """Returns what is claimed of a night. No change is claimed, and none ends, without a second reading.

    `confirm` measures once more in the same night, and returns None if that did not run. It is called at most once, and
    only if the first reading is suspicious.
    """
    rate, memory = level.rate, level.memory
    rate_band, peak_band = throughput_band(rate.reference), memory_band(memory.reference, level.highest)
    rates = (
        rate.back(rate_band, tonight.rate_per_s)
        if rate.side
        else throughput_suspicions(rate.reference, rate_band, tonight.rate_per_s)
    )
    peaks = (
        memory.back(peak_band, tonight.peak_bytes) if memory.side else memory_suspicions(peak_band, tonight.peak_bytes)
    )
    second = confirm() if rates or peaks else None
    second_rate, second_peak = second or (None, None)
    return Decision(
        _ruling(rate, rate_band, rates, second_rate), _ruling(memory, peak_band, peaks, second_peak), second
    )


def _ruling(track: Track, band: Band, suspicions: list[Suspicion], second: float | None) -> Ruling:
    confirmed = [each for each in suspicions if second is not None and each.confirmed(second)]
    main = next(iter(confirmed or suspicions), None)
    if track.side:
        return Ruling(0 if confirmed else track.side, band.around(track.expected), main, track.since)
    if not confirmed or main is None:
        return Ruling(0, band, main)
    return Ruling(main.side, band.around(main.expected), main)
