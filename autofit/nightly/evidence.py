"""The evidence for a verdict in one sentence: what was measured, what it was compared with, and what confirmed it."""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median

from autofit.core.units import format_bytes, short_number
from autofit.nightly.decision import Decision, Ruling
from autofit.nightly.levels import NightReading, Track
from autofit.nightly.rule import LEAST_NIGHTS, WINDOW, Band, Suspicion

THROUGHPUT, PEAK = "throughput", "the peak"
LEAST_GROWTH = 0.0005
"""Least growth of the peak per night, as a share of it, that is reported as growth."""
WIDE_BAND = 0.3
"""Share of the throughput that a night may lose unnoticed, above which its band is too wide to tell. It is also what a
night may lose against the search that found its plan: two separate runs on a shared machine differ by that much."""
FAR_NIGHTS = 365
"""If the budget is further away than this many nights, the text does not say when it is reached."""


def sentence(decision: Decision, tonight: NightReading, rate: Track, unit: str) -> str:
    """Returns the evidence on both measures without a full stop, a claim first.

    Args:
        decision: what is claimed of tonight.
        tonight: the first reading.
        rate: throughput over the earlier nights.
        unit: "samples" or "tokens".
    """
    second_rate, second_peak = decision.second or (None, None)
    throughput = _Measure(THROUGHPUT, decision.rate, tonight.rate_per_s, second_rate, lambda x: rate_text(x, unit))
    peak = _Measure(PEAK, decision.memory, tonight.peak_bytes, second_peak, lambda x: format_bytes(round(x)))
    texts = [throughput.text(), peak.text()]
    if decision.rate.side > 0 and not decision.rate.begins:
        texts[0] += _becomes_level(LEAST_NIGHTS - len(rate.changed) - 1)
    if decision.memory.side and not decision.rate.side:
        texts.reverse()
    return "; ".join(texts)


def rate_text(rate_per_s: float, unit: str) -> str:
    """Returns a throughput with its unit."""
    return f"{short_number(rate_per_s)} {unit}/s"


def unnoticed(band: Band) -> float:
    """Returns the share of the throughput that a night may lose inside its band."""
    return 1 - band.low / band.expected if band.expected else 0.0


def counted_nights(count: int) -> str:
    """Returns a number of nights with its noun."""
    return f"{count} night" if count == 1 else f"{count} nights"


def growth_per_night(values: Sequence[float]) -> float:
    """Returns the growth per night of the latest nights: the median slope between any two of them.

    Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    latest = list(enumerate(values[-WINDOW:]))
    slopes = [(after - before) / (j - i) for (i, before), (j, after) in combinations(latest, 2)]
    return median(slopes) if slopes else 0.0


def until_budget(memory: Track, peak_bytes: int, budget_bytes: int | None) -> str:
    """Returns how fast the peak grows and when it reaches the budget, without a full stop; "" if it does not grow."""
    per_night = growth_per_night([*memory.reference, *memory.changed, peak_bytes])
    if per_night <= LEAST_GROWTH * peak_bytes:
        return ""
    text = f"the peak grows by {format_bytes(round(per_night))} ({per_night / peak_bytes:.2%}) per night"
    if budget_bytes is None or (nights := int((budget_bytes - peak_bytes) / per_night)) > FAR_NIGHTS:
        return text
    return f"{text} and reaches the budget of {format_bytes(budget_bytes)} in {counted_nights(nights)}"


class _Measure:
    """One measure of a night, described.

    Args:
        name: name of the measure.
        ruling: what is claimed of it.
        first: the first reading.
        second: the second reading; None if there is none.
        shown: writes a value with its unit.
    """

    def __init__(
        self, name: str, ruling: Ruling, first: float, second: float | None, shown: Callable[[float], str]
    ) -> None:
        self._name, self._ruling, self._first, self._shown = name, ruling, first, shown
        self._readings = shown(first) + ("" if second is None else f", measured again {shown(second)}")
        self._repeated = second is not None

    def text(self) -> str:
        """Returns what is claimed and its evidence."""
        ruling, found = self._ruling, self._ruling.suspicion
        if ruling.since:
            return self._open()
        if found is None:
            nights = counted_nights(ruling.band.nights)
            inside = f"{self._name} {self._shown(self._first)} is inside its band of {nights}, {self._limits()}"
            return inside + self._blind()
        claim = self._began(found) if ruling.side else self._doubted(found)
        return f"{claim}: tonight {self._readings}, band {self._limits()}"

    def _blind(self) -> str:
        """Returns that a loss of speed would not be noticed, if the band is that wide; else ""."""
        lost = unnoticed(self._ruling.band)
        if lost <= WIDE_BAND or self._name != THROUGHPUT:
            return ""
        return f", so wide that a night is not noticed before it loses {lost:.0%}: the nights differ too much"

    def _limits(self) -> str:
        return f"{self._shown(self._ruling.band.low)} to {self._shown(self._ruling.band.high)}"

    def _open(self) -> str:
        """Returns what became of a change that was open before tonight."""
        ruling, expected = self._ruling, self._ruling.band.expected
        figures = f"{self._readings}, {self._shown(expected)} before"
        if ruling.ended:
            return f"{self._name} is back: {figures}; the change since {ruling.since} ended"
        if ruling.suspicion is not None:
            still = f"{self._name} is not reliably back to where it was before {ruling.since}: {figures}"
        else:
            still = f"{self._name} is still {_difference(self._first, expected)} than before {ruling.since}: {figures}"
        faster = ruling.side > 0 and self._name == THROUGHPUT
        return still if faster else f"{still}; reported until it is back or accepted"

    def _began(self, found: Suspicion) -> str:
        """Returns what a new change rests on."""
        moved = f"{self._name} is {_difference(found.shown, found.expected)}"
        shown, expected = self._shown(found.shown), self._shown(found.expected)
        if found.cause == "run":
            before = f"the median of the {found.before} nights before is {expected}"
            return f"{moved} over the last {found.nights} nights: their mean is {shown}, {before}"
        if found.cause == "drift":
            before = f"that of the first {found.before} nights is {expected}"
            return f"{moved} after a slow decline: the median of the last {found.nights} nights is {shown}, {before}"
        return f"{moved} than the median of {counted_nights(found.before)}, {expected}"

    def _doubted(self, found: Suspicion) -> str:
        """Returns which suspicion was not confirmed."""
        what = f"{self._name} was {'higher' if found.side > 0 else 'lower'} than expected"
        return f"{what} once, not when measured again" if self._repeated else f"{what}, and was not measured again"


def _difference(value: float, expected: float) -> str:
    """Returns by how much a value is higher or lower."""
    if not expected:
        return "higher"
    return f"{abs(value / expected - 1):.1%} {'higher' if value > expected else 'lower'}"


def _becomes_level(nights: int) -> str:
    """Returns when a faster level becomes the reference."""
    if nights > 0:
        return f"; after {counted_nights(nights)} more, nights are compared with the new level"
    return "; from now on, nights are compared with the new level"
