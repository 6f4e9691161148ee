"""What is left of a time budget, and what one run may take of it."""

import math

import pytest

from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S, PROCESS_S, Clock
from autofit.core.errors import ClockError


class Source:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        """Returns the seconds so far."""
        return self.seconds


@pytest.fixture
def source() -> Source:
    return Source()


def test_time_counts_from_when_the_clock_was_made(source: Source) -> None:
    clock = Clock(now=source, limit_s=60.0)
    source.seconds += 45
    assert (clock.elapsed_s, clock.left_s) == (45, 15)


def test_time_before_the_clock_was_made_counts_where_its_start_is_given(source: Source) -> None:
    assert Clock(now=source, start=70.0).elapsed_s == 30


def test_without_a_limit_nothing_is_stopped(source: Source) -> None:
    clock = Clock(now=source)
    assert clock.left_s == clock.patience_s() == clock.closing_s() == math.inf


@pytest.mark.parametrize("reading", [99.0, math.nan])
def test_a_clock_that_goes_backwards_or_gives_no_number_is_refused(source: Source, reading: float) -> None:
    clock = Clock(now=source)
    source.seconds = reading
    with pytest.raises(ClockError, match="expected at least 0"):
        _ = clock.elapsed_s


def test_a_run_may_take_all_that_is_left(source: Source) -> None:
    clock = Clock(now=source, limit_s=200.0)
    source.seconds += 150
    assert clock.patience_s() == 50


def test_what_puts_everything_back_has_the_overtime_too(source: Source) -> None:
    clock = Clock(now=source, limit_s=200.0)
    source.seconds += 150
    assert clock.closing_s() == 50 + OVERTIME_RATIO * 200 + OVERTIME_S - PROCESS_S


def test_after_the_end_nothing_may_run_but_the_overtime_remains(source: Source) -> None:
    clock = Clock(now=source, limit_s=60.0)
    source.seconds += 100
    assert clock.patience_s() == 0.0
    assert clock.closing_s() == OVERTIME_RATIO * 60 + OVERTIME_S - PROCESS_S
