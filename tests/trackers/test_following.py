"""Listeners of a search: a tracker or a callable that fails, hangs or is slow costs one warning and a bounded time."""

import threading
import time
import warnings
from collections.abc import Callable

import pytest

import autofit.trackers
from autofit.core.errors import UsageError
from autofit.search.request import Event
from autofit.trackers.base import Ending
from autofit.trackers.following import PATIENCE_S, Background, fail_soft, following, warn_user
from tests.fakes.trackers import KeptTracker, no_documents
from tests.recorded import recorded_search

EVENT = Event("stage", "searching")


def test_a_listener_that_fails_is_not_called_again_and_is_named_once() -> None:
    seen: list[Event] = []
    said: list[str] = []

    def listen(event: Event) -> None:
        seen.append(event)
        raise ValueError("no such page")

    listener = fail_soft(listen, said.append)
    for _ in range(3):
        listener(EVENT)
    assert seen == [EVENT]
    assert len(said) == 1
    assert "listen failed and gets no further events: ValueError: no such page" in said[0]


def test_an_interrupt_passes_through() -> None:
    def listen(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_soft(listen, pytest.fail)(EVENT)


def test_a_callable_object_is_named_by_its_class() -> None:
    class Page:
        def __call__(self, event: Event) -> None:
            raise OSError("full")

    said: list[str] = []
    fail_soft(Page(), said.append)(EVENT)
    assert "Page failed" in said[0]


def test_the_user_is_warned() -> None:
    with pytest.warns(RuntimeWarning, match="away"):
        warn_user("the server is away")


def test_where_warnings_are_errors_the_text_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_user("the server is away")
    assert capsys.readouterr().err == "autofit: the server is away\n"


METHODS = ("connect", "open", "log", "conclude", "close")


def searched(tracker: KeptTracker, patience_s: float = 30.0) -> list[str]:
    """Searches with a tracker in the background; returns the warnings."""
    said: list[str] = []
    listener = Background(tracker, said.append, no_documents, patience_s)
    try:
        result = recorded_search(listen=[listener])
    finally:
        listener.close()
    assert result.answer is not None, "the search must not be affected"
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
    monkeypatch.setattr("autofit.trackers.following.FLUSH_S", 0.3)
    monkeypatch.setattr("autofit.trackers.following.PATIENCE_RATIO", 0.0)
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


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[KeptTracker]:
    """The trackers that are made under the name "kept"."""
    made: list[KeptTracker] = []

    class Made(KeptTracker):
        def __init__(self, where: str) -> None:
            super().__init__(where)
            made.append(self)

    monkeypatch.setattr(autofit.trackers, "members", lambda: (Made,))
    return made


def test_callables_and_trackers_follow_one_search(kept: list[KeptTracker]) -> None:
    events: list[Event] = []
    with following([events.append, "kept", "kept:sqlite:///a.db"], warn=pytest.fail) as listeners:
        recorded_search(listen=listeners)
    assert [event.kind for event in events][:: len(events) - 1] == ["start", "result"]
    assert [tracker.where for tracker in kept] == ["", "sqlite:///a.db"]
    assert [tracker.ending for tracker in kept] == [Ending.FINISHED] * 2


def test_one_name_need_not_be_a_list(kept: list[KeptTracker]) -> None:
    with following("kept:x") as listeners:
        assert len(listeners) == 1
    assert kept[0].where == "x"


def test_trackers_are_ended_after_an_interrupt(kept: list[KeptTracker]) -> None:
    start = Event("start", "", asked=recorded_search().evidence)

    def interrupted() -> None:
        with following(["kept"]) as listeners:
            listeners[0](start)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert kept[0].ending is Ending.INTERRUPTED


@pytest.mark.parametrize(
    ("given", "said"), [(3, "found 3 among the listeners"), ("nowhere", "'nowhere'; expected one of")]
)
def test_what_cannot_follow_is_refused_before_any_begins(given: object, said: str, kept: list[KeptTracker]) -> None:
    with pytest.raises(UsageError, match=said), following(["kept", given]):  # type: ignore[list-item]
        pytest.fail("the search must not begin")
    assert all(tracker.calls == [] for tracker in kept)


def test_patience_is_a_share_of_the_time_budget(kept: list[KeptTracker], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Background, "__init__", lambda self, *args: waits.append(args[-1]))
    monkeypatch.setattr(Background, "close", lambda self: None)
    for time_s in (None, 20.0, 3600.0):
        with following(["kept"], time_s=time_s):
            pass
    assert waits == [PATIENCE_S, 1.0, PATIENCE_S]
