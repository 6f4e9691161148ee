"""The fake tracker keeps what it gets, fails and hangs where it should."""

import threading

import pytest

from autofit.trackers.base import Conclusion, Ending
from tests.fakes.trackers import KeptTracker


def test_it_keeps_what_is_logged() -> None:
    tracker = KeptTracker()
    tracker.connect()
    tracker.open("title", {"a": 1})
    tracker.log(3, {"m": 1.5}, {"t": "x"})
    tracker.conclude(Conclusion({}, {}, {}))
    tracker.close(Ending.FAILED)
    assert tracker.calls == ["connect", "open", "log", "conclude", "close"]
    assert (tracker.title, tracker.parameters, tracker.steps) == ("title", {"a": 1}, [(3, {"m": 1.5}, {"t": "x"})])
    assert tracker.ending is Ending.FAILED
    assert tracker.conclusion is not None


def test_it_fails_where_it_should() -> None:
    with pytest.raises(OSError, match="log: no space"):
        KeptTracker(fails=("log",)).log(1, {}, {})


def test_it_hangs_until_it_is_freed() -> None:
    tracker = KeptTracker(hangs=("connect",))
    thread = threading.Thread(target=tracker.connect)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    tracker.free.set()
    thread.join(10)
    assert not thread.is_alive()
