"""A watchdog ends what takes more than its part of the time, and says what goes on for long."""

import threading
import time

import pytest

from autofit.core.budget import Clock
from autofit.core.outcome import COMPILING
from autofit.probing.watchdog import LEAST_REPORT_S, WAITING, Overdue, Watchdog


class Time:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_limit_all_is_allowed() -> None:
    assert Watchdog().allowed(lambda: 3) == 3


def test_nothing_begins_when_the_time_is_over() -> None:
    now = Time()
    watchdog = Watchdog(Clock(now=now, limit_s=10.0))
    now.now_s = 10.0
    with pytest.raises(Overdue, match="the time budget of 10 s ran out before it began"):
        watchdog.allowed(lambda: 3)


def test_what_asks_ends_when_its_part_is_used_up_and_the_outer_part_holds_again_afterwards() -> None:
    now = Time()
    watchdog = Watchdog(Clock(now=now, limit_s=100.0))

    def inner() -> None:
        now.now_s += 15.0
        watchdog.check()

    def outer() -> str:
        with pytest.raises(Overdue, match="not finished in the time that it was given of the budget of 1 min 40 s"):
            watchdog.allowed(inner, most_s=10.0)
        watchdog.check()
        return "went on"

    assert watchdog.allowed(outer) == "went on"


def test_a_sleep_is_ended_in_the_middle_and_no_thread_is_left() -> None:
    threads = threading.active_count()
    began = time.monotonic()
    with Watchdog(Clock(limit_s=60.0)) as watchdog:
        watchdog.beat("forward")
        with pytest.raises(Overdue, match="'forward' had been running for"):
            watchdog.allowed(lambda: time.sleep(30.0), most_s=0.3)
    assert time.monotonic() - began < 10.0
    assert threading.active_count() == threads


def test_a_short_silence_is_not_reported() -> None:
    told: list[str] = []
    with Watchdog(Clock(limit_s=1.0), told.append) as watchdog:
        watchdog.beat("backward")
        time.sleep(LEAST_REPORT_S / 2)
    assert told == []


def test_what_gives_no_sign_of_life_is_told_to_whoever_listens() -> None:
    told: list[str] = []
    with Watchdog(Clock(limit_s=1.0), told.append) as watchdog:
        watchdog.beat("backward")
        while not told and watchdog.clock.elapsed_s < 20.0:
            time.sleep(0.05)
    assert any(text.startswith("no sign of life for") and "'backward' is still running" in text for text in told)


def test_a_compiler_is_silent_for_long_and_that_is_no_alarm() -> None:
    told, now = list[str](), Time()
    with Watchdog(Clock(now=now, limit_s=60.0), told.append) as watchdog:
        watchdog.beat(COMPILING)
        now.now_s = 20.0  # a third of the time: any other phase is reported after a quarter
        time.sleep(1.0)
        assert told == []
        now.now_s = 31.0
        began = time.monotonic()
        while not told and time.monotonic() - began < 20.0:
            time.sleep(0.05)
    assert told == ["compiling for 31 s so far"]


def test_a_wait_for_another_tuner_is_not_a_silence() -> None:
    told: list[str] = []
    with Watchdog(Clock(limit_s=1.0), told.append) as watchdog:
        watchdog.beat(WAITING)
        time.sleep(1.5 * LEAST_REPORT_S)
    assert told == []
