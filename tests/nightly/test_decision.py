"""The decision: nothing is claimed, and nothing ends, without a second reading."""

import pytest

from autofit.nightly.decision import decide
from autofit.nightly.levels import Level, NightReading, PastNight


def level() -> Level:
    found = Level()
    for number in range(20):
        found.add(PastNight(str(number), NightReading(100.0, 10.0), 10.0))
    return found


@pytest.mark.parametrize(
    ("first", "second", "rate", "memory"),
    [
        ((100.0, 10.0), None, 0, 0),
        ((94.0, 10.0), (94.0, 10.0), -1, 0),
        ((94.0, 10.0), (100.0, 10.0), 0, 0),
        ((94.0, 10.0), None, 0, 0),
        ((106.0, 10.0), (106.0, 10.0), 1, 0),
        ((100.0, 11.0), (100.0, 11.0), 0, 1),
        ((94.0, 11.0), (94.0, 11.0), -1, 1),
        ((100.0, 9.0), (100.0, 9.0), 0, 0),
    ],
)
def test_what_is_claimed(
    first: tuple[float, float], second: tuple[float, float] | None, rate: int, memory: int
) -> None:
    asked = []

    def confirm() -> NightReading | None:
        asked.append(1)
        return None if second is None else NightReading(*second)

    found = decide(level(), NightReading(*first), confirm)
    assert (found.rate.side, found.memory.side) == (rate, memory)
    assert len(asked) == found.suspicious == (first not in ((100.0, 10.0), (100.0, 9.0)))
    assert found.rate.begins is (rate != 0)


def test_an_open_change_stays_or_ends_with_both_readings() -> None:
    open_one = level()
    open_one.add(PastNight("20", NightReading(90.0, 10.0), 10.0, rate_side=-1, expected=NightReading(100.0, 10.0)))
    still = decide(open_one, NightReading(90.5, 10.0), lambda: pytest.fail("not needed"))
    assert (still.rate.side, still.rate.since, still.rate.ended) == (-1, "20", False)
    ended = decide(open_one, NightReading(100.0, 10.0), lambda: NightReading(99.0, 10.0))
    assert (ended.rate.side, ended.rate.ended) == (0, True)
    doubted = decide(open_one, NightReading(100.0, 10.0), lambda: NightReading(89.0, 10.0))
    assert (doubted.rate.side, doubted.rate.ended) == (-1, False)
