"""The watchdog learns what a search is doing, and that a wait for another tuner is no silence."""

from autofit.core.budget import Clock
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.event import Event
from autofit.trackers.heartbeat import CHOOSING, heartbeat, waiting


def test_each_event_is_a_sign_of_life_and_a_wait_is_one_of_its_own() -> None:
    watch = Watchdog(Clock())
    listen = heartbeat(watch)
    listen(Event("busy", "waiting for the study"))
    assert watch.doing == WAITING
    listen(Event("stage", "searching"))
    assert watch.doing == CHOOSING


def test_a_message_about_a_lock_becomes_an_event() -> None:
    watch, events = Watchdog(Clock()), list[Event]()
    waiting(watch, events.append)("waiting up to 5 s for the GPU")
    assert watch.doing == WAITING
    assert [(event.kind, event.text) for event in events] == [("busy", "waiting up to 5 s for the GPU")]
