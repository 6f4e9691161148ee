"""Claims: which jobs of a night this process checks, if several machines share them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from autofit.core.errors import StudyError
from autofit.nightly.history import History
from autofit.nightly.instants import instant
from autofit.nightly.records import NightRecord, VerdictKind
from autofit.study.fleet import Fleet
from autofit.study.location import Place

CHECKED = timedelta(hours=12)
"""Time for which a job that one machine has checked is not checked by another one."""
MOST_ERRORS = 2
"""Number of checks that may end with an error within `CHECKED`: a second machine tries what failed on the first."""

BEING_CHECKED = "another machine is checking it"
"""Reason for which a job is left to another machine as long as that machine is at it."""


class Claims(Protocol):
    """Which jobs this process checks.

    Attributes:
        shared: whether other machines check jobs too. A job then stays on the device of its records.
    """

    shared: bool

    def claim(self, job: str) -> AbstractContextManager[str]:
        """Claims a job until the context ends. Gives the reason why another machine has it, or ""."""
        ...

    def record_elsewhere(self, job: str) -> NightRecord | None:
        """Returns the record that another machine has just made of a job; None if there is none."""
        ...


class OneMachine:
    """All jobs are checked here."""

    shared = False

    @contextmanager
    def claim(self, job: str) -> Iterator[str]:
        """Gives ""."""
        yield ""

    def record_elsewhere(self, job: str) -> NightRecord | None:
        """Returns None."""
        return None


class SharedClaims:
    """Each job is checked by one of the machines that share a database.

    Args:
        fleet: has the claims of all machines.
        history: the records of all machines.
        today: returns the present time, in UTC.
        say: receives a line if the database does not answer. The job is then checked here.
        named: whether the user names the jobs to check. They are then checked again, however recent their records.
    """

    shared = True

    def __init__(
        self,
        fleet: Fleet,
        history: History,
        today: Callable[[], datetime],
        say: Callable[[str], None],
        *,
        named: bool = False,
    ) -> None:
        self._fleet, self._history, self._today, self._say, self._named = fleet, history, today, say, named

    @contextmanager
    def claim(self, job: str) -> Iterator[str]:
        """Claims a job until the context ends. Gives the reason why another machine has it, or ""."""
        with ExitStack() as held:
            try:
                first = held.enter_context(self._fleet.claiming(f"job {job}"))
            except StudyError as error:
                self._say(f"{error} The job is not shared.")
                first = True
            yield self._checked(job) if first else BEING_CHECKED

    def record_elsewhere(self, job: str) -> NightRecord | None:
        """Returns the latest record of a job, if it is recent; None otherwise."""
        self._history.refresh()
        return next((each for each in reversed(self._history.of_job(job)) if self._is_recent(each)), None)

    def _checked(self, job: str) -> str:
        """Returns that another machine has just checked a job; "" if none has, or if the job is checked again."""
        self._history.refresh()
        recent = [] if self._named else [record for record in self._history.of_job(job) if self._is_recent(record)]
        done = [record for record in recent if record.verdict.kind is not VerdictKind.ERROR]
        if done:
            return f"it was checked at {done[-1].at}"
        if len(recent) >= MOST_ERRORS:
            return f"its last {len(recent)} checks ended with an error, the latest at {recent[-1].at}"
        return ""

    def _is_recent(self, record: NightRecord) -> bool:
        at = instant(record.at)
        return at is not None and self._today() - at <= CHECKED


@contextmanager
def claims_of(
    history: History,
    location: str,
    today: Callable[[], datetime],
    say: Callable[[str], None],
    *,
    host: str | None,
    named: bool = False,
) -> Iterator[Claims]:
    """Gives the claims of a shared night. If the database cannot be reached, the night is not shared.

    Args:
        history: the records of all machines.
        location: the storage of the history.
        today: returns the present time, in UTC.
        say: receives one line for people.
        host: the jobs file that workers open to take part in the night; None for a worker that takes part.
        named: see `SharedClaims`.
    """
    with ExitStack() as held:
        claims: Claims = OneMachine()
        try:
            fleet = held.enter_context(Fleet.opened(Place.of(location)))
            if host is not None:
                held.enter_context(fleet.hosting(host))
            claims = SharedClaims(fleet, history, today, say, named=named)
        except StudyError as error:
            say(f"{error} The jobs are not shared.")
        yield claims
