"""The decision on a night: what is claimed of throughput and peak, with a second reading if the first is suspicious."""

from collections.abc import Callable
from typing import NamedTuple

from autofit.nightly.levels import Level, NightReading, Track
from autofit.nightly.rule import (
    Band,
    Suspicion,
    memory_band,
    memory_suspicions,
    throughput_band,
    throughput_suspicions,
)


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

    @property
    def ended(self) -> bool:
        """Whether a change that was open before tonight ended."""
        return self.side == 0 and self.since != ""


class Decision(NamedTuple):
    """What is claimed of tonight.

    Attributes:
        rate: ruling on throughput.
        memory: ruling on the peak.
        suspicious: whether a second reading was asked for.
        second: the second reading; None if none was needed or it did not run.
    """

    rate: Ruling
    memory: Ruling
    suspicious: bool
    second: NightReading | None


def decide(level: Level, tonight: NightReading, confirm: Callable[[], NightReading | None]) -> Decision:
    """Returns what is claimed of a night. No change is claimed, and none ends, without a second reading.

    Args:
        level: the earlier nights of the segment; none are missing.
        tonight: the first reading.
        confirm: measures once more in the same night; returns None if that did not run. Called at most once, and only
            if the first reading is suspicious.
    """
    rate, memory = level.rate, level.memory
    rate_band, memory_limits = throughput_band(rate.reference), memory_band(memory.reference, level.highest)
    if rate.side:
        slower_or_faster = rate.back(rate_band, tonight.rate_per_s)
    else:
        slower_or_faster = throughput_suspicions(rate.reference, rate_band, tonight.rate_per_s)
    if memory.side:
        grown = memory.back(memory_limits, tonight.peak_bytes)
    else:
        grown = memory_suspicions(memory_limits, tonight.peak_bytes)
    suspicious = bool(slower_or_faster or grown)
    second = confirm() if suspicious else None
    second_rate, second_peak = second or (None, None)
    rate_ruling = _ruling(rate, rate_band, slower_or_faster, second_rate)
    return Decision(rate_ruling, _ruling(memory, memory_limits, grown, second_peak), suspicious, second)


def _ruling(track: Track, band: Band, suspicions: list[Suspicion], second: float | None) -> Ruling:
    confirmed = [each for each in suspicions if second is not None and each.confirmed(second)]
    main = next(iter(confirmed or suspicions), None)
    if track.side:
        return Ruling(0 if confirmed else track.side, band.around(track.expected), main, track.since)
    if not confirmed or main is None:
        return Ruling(0, band, main)
    return Ruling(main.side, band.around(main.expected), main)
