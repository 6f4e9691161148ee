"""Listeners are checked before a search, follow it, and are ended after it."""

import pytest

import autofit.trackers
from autofit.core.errors import UsageError
from autofit.search.event import Event
from autofit.trackers import background
from autofit.trackers.base import Ending
from autofit.trackers.following import following
from tests.fakes.trackers import KeptTracker
from tests.recorded import recorded_search


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
    monkeypatch.setattr(background.Background, "__init__", lambda self, *args: waits.append(args[-1]))
    monkeypatch.setattr(background.Background, "close", lambda self: None)
    for time_s in (None, 20.0, 3600.0):
        with following(["kept"], time_s=time_s):
            pass
    assert waits == [background.PATIENCE_S, 1.0, background.PATIENCE_S]
