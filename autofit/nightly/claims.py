"""Claims: which jobs of a night this process checks, if several machines share them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Protocol

from autofit.core.errors import StudyError
from autofit.nightly.history import History
from autofit.nightly.instants import instant
from autofit.study.fleet import Fleet
from autofit.study.location import Place

CHECKED = timedelta(hours=12)
"""Time for which a job that one machine has checked is not checked by another one."""


class Claims(Protocol):
    """Which jobs this process checks.

    Attributes:
        shared: whether other machines check jobs too. A job then stays on the device of its records.
    """

    shared: bool

    def claim(self, job: str) -> AbstractContextManager[str]:
        """Claims a job until the context ends. Gives the reason why another machine has it, or ""."""
        ...


class OneMachine:
    """All jobs are checked here."""

    shared = False

    @contextmanager
    def claim(self, job: str) -> Iterator[str]:
        """Gives ""."""
        yield ""


class SharedClaims:
    """Each job is checked by one of the machines that share a database.

    Args:
        fleet: has the claims of all machines.
        history: the records of all machines.
        today: returns the present time, in UTC.
        say: receives a line if the database does not answer. The job is then checked here.
    """

    shared = True

    def __init__(
        self, fleet: Fleet, history: History, today: Callable[[], datetime], say: Callable[[str], None]
    ) -> None:
        self._fleet, self._history, self._today, self._say = fleet, history, today, say

    @contextmanager
    def claim(self, job: str) -> Iterator[str]:
        """Claims a job until the context ends. Gives the reason why another machine has it, or ""."""
        with ExitStack() as held:
            try:
                first = held.enter_context(self._fleet.claiming(f"job {job}"))
            except StudyError as error:
                self._say(f"{error} The job is not shared.")
                first = True
            yield self._checked(job) if first else "another machine is checking it"

    def _checked(self, job: str) -> str:
        """Returns that another machine has just checked a job; "" if none has."""
        self._history.refresh()
        records = self._history.of_job(job)
        at = instant(records[-1].at) if records else None
        if at is None or self._today() - at > CHECKED:
            return ""
        return f"it was checked at {records[-1].at}"


@contextmanager
def claims_of(
    history: History, location: str, today: Callable[[], datetime], say: Callable[[str], None], *, host: str | None
) -> Iterator[Claims]:
    """Gives the claims of a shared night. If the database cannot be reached, the night is not shared.

    Args:
        history: the records of all machines.
        location: the storage of the history.
        today: returns the present time, in UTC.
        say: receives one line for people.
        host: the jobs file that workers open to take part in the night; None for a worker that takes part.
    """
    with ExitStack() as held:
        claims: Claims = OneMachine()
        try:
            fleet = held.enter_context(Fleet.opened(Place.of(location)))
            if host is not None:
                held.enter_context(fleet.hosting(host))
            claims = SharedClaims(fleet, history, today, say)
        except StudyError as error:
            say(f"{error} The jobs are not shared.")
        yield claims
