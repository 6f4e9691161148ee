"""Heartbeat: tells the watchdog of a search what the search is doing."""

from collections.abc import Callable

from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.event import Event
from autofit.search.request import Listen

CHOOSING = "choosing the next plan"
"""Name of the phase between two runs."""


def heartbeat(watch: Watchdog) -> Listen:
    """Returns a listener: each event of a search is a sign of life."""
    return lambda event: watch.beat(WAITING if event.kind == "busy" else CHOOSING)


def waiting(watch: Watchdog, listen: Listen) -> Callable[[str], None]:
    """Returns what passes a message about another tuner's lock on to a listener, as an event "busy"."""

    def say(text: str) -> None:
        watch.beat(WAITING)
        listen(Event("busy", text))

    return say
