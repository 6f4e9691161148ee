"""A tracker that fails, hangs or is slow costs a search one warning and a bounded time."""

import threading
import time
from collections.abc import Callable

import pytest

from autofit.search.event import Event
from autofit.trackers import background
from autofit.trackers.background import Background
from autofit.trackers.base import Ending
from autofit.trackers.following import no_documents
from tests.fakes.trackers import KeptTracker
from tests.recorded import recorded_search

METHODS = ("connect", "open", "log", "conclude", "close")


def searched(tracker: KeptTracker, patience_s: float = 30.0) -> list[str]:
    """Searches with a tracker in the background; returns the warnings."""
    said: list[str] = []
    listener = Background(tracker, said.append, no_documents, patience_s)
    try:
        result = recorded_search(listen=[listener])
    finally:
        listener.close()
    assert result.recommendation is not None, "the search must not be affected"
    return said


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("autofit")]


def test_all_is_logged_from_one_thread_that_ends() -> None:
    names = set[str]()

    class Named(KeptTracker):
        def _called(self, name: str) -> None:
            names.add(threading.current_thread().name)
            super()._called(name)

    tracker = Named()
    assert searched(tracker) == []
    assert tracker.calls[:2] == ["connect", "open"]
    assert tracker.calls[-2:] == ["conclude", "close"]
    assert tracker.ending is Ending.FINISHED
    assert names == {"autofit kept"}
    assert running() == []


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_fails_is_one_warning(method: str) -> None:
    tracker = KeptTracker(fails=(method,))
    (said,) = searched(tracker)
    assert f"the tracker kept failed and gets no further events: OSError: {method}: no space left on device." in said
    assert tracker.calls.count(method) == 1
    opened = method not in ("connect",)
    assert tracker.calls.count("close") == int(opened), "a run that was opened is closed"
    assert running() == []


def test_all_methods_fail_and_one_warning_is_shown() -> None:
    tracker = KeptTracker(fails=METHODS)
    assert len(searched(tracker)) == 1
    assert tracker.calls == ["connect"]


def test_an_exit_in_the_tracker_is_a_failure() -> None:
    class Exits(KeptTracker):
        def log(self, *_: object) -> None:
            raise SystemExit("bye")

    (said,) = searched(Exits())
    assert "SystemExit: bye" in said


def test_a_password_in_an_error_is_not_shown() -> None:
    class Refused(KeptTracker):
        def log(self, *_: object) -> None:
            raise OSError("cannot reach https://me:hunter2@host/\nnow")

    (said,) = searched(Refused())
    assert "cannot reach https://***@host/ now" in said


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_hangs_costs_a_bounded_time(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FLUSH_S", 0.3)
    monkeypatch.setattr(background, "PATIENCE_RATIO", 0.0)
    tracker = KeptTracker(hangs=(method,))
    began_s = time.monotonic()
    searched(KeptTracker())
    normal_s = time.monotonic() - began_s
    began_s = time.monotonic()
    (said,) = searched(tracker, patience_s=0.5)
    assert time.monotonic() - began_s < 3 * normal_s + 3
    assert "did not finish within 0.3 s after the search" in said
    tracker.free.set()
    _until(lambda: running() == [])


def test_events_of_a_slow_tracker_are_logged_late_but_in_order() -> None:
    class Slow(KeptTracker):
        def log(self, step: int, *rest: object) -> None:
            time.sleep(0.01)
            super().log(step, *rest)  # type: ignore[arg-type]

    tracker = Slow()
    assert searched(tracker, patience_s=0.0) == []
    trials = [step for step, _, texts in tracker.steps if texts]
    assert trials == sorted(trials)
    assert tracker.conclusion is not None


def test_too_many_events_are_lost_but_not_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_EVENTS", 3)
    monkeypatch.setattr(background, "PATIENCE_RATIO", 0.0)
    tracker = KeptTracker(hangs=("open",))
    said: list[str] = []
    listener = Background(tracker, said.append, no_documents, 0.0)
    recorded_search(listen=[listener])
    tracker.free.set()
    listener.close()
    assert tracker.conclusion is not None
    assert "was too slow" in said[0]
    assert len(said) == 1


def test_while_the_tracker_is_quick_nothing_is_logged_during_a_run() -> None:
    tracker = KeptTracker()
    listener = Background(tracker, pytest.fail, no_documents, 30.0)
    listener(Event("start", "", asked=recorded_search().evidence))
    assert tracker.calls == ["connect", "open"]
    listener.close()


def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)
