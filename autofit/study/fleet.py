"""Fleet: what several machines share in a database: open offers of searches, workers, nights, and claims.

All of them are members: running trials of an Optuna study of their own. Optuna's heartbeats show which of them are
alive, by the clock of the database, so that the clocks of the machines need not agree.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.trial import TrialState, create_trial

from autofit.core.errors import StudyError
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from autofit.study.optuna_storage import database, disconnect, quiet

FLEET = "autofit.fleet"
"""Name of the Optuna study that has the offers and the workers."""
BEAT_S = 2
"""Seconds between two heartbeats."""
LOST_S = 15
"""Seconds without a heartbeat after which an offer is closed, or a worker is treated as dead."""
OFFER, WORKS_FOR = "autofit.offer", "autofit.works_for"
"""Attributes of a member: the text of an offer; the number of the offer that a worker runs plans for."""
NIGHT, CLAIMS = "autofit.night", "autofit.claims"
"""Attributes of a member: the jobs file of a night; the key of a claim."""


@dataclass(frozen=True, slots=True)
class OpenOffer:
    """An offer whose tuner is alive.

    Attributes:
        number: its number in the database.
        offer: what is offered; None if it is of another version of autofit.
    """

    number: int
    offer: SearchOffer | None


class Fleet:
    """What several machines share in a database.

    An object is used by one thread. Its heartbeats come from another thread, with a connection of its own.

    Args:
        place: the database.

    Raises:
        StudyError: the database cannot be used.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        with place.guarded("opened"):
            self._storage = _heard(place)
            with quiet():
                study = optuna.create_study(storage=self._storage, study_name=FLEET, load_if_exists=True)
            self._study, self._study_id = study, self._storage.get_study_id_from_name(FLEET)

    @classmethod
    @contextmanager
    def opened(cls, place: Place) -> Iterator[Self]:
        """Opens the fleet of a database. No connection stays open afterwards."""
        fleet = cls(place)
        try:
            yield fleet
        finally:
            disconnect(fleet._storage)

    @contextmanager
    def offering(self, offer: SearchOffer) -> Iterator[int]:
        """Keeps an offer open, and gives its number.

        Raises:
            StudyError: the offer cannot be written.
        """
        with self._member({OFFER: offer.model_dump_json(exclude_unset=True)}) as number:
            yield number

    @contextmanager
    def working(self, offer: int) -> Iterator[int]:
        """Keeps this process a worker of an offer, and gives the worker's number.

        Raises:
            StudyError: this cannot be written.
        """
        with self._member({WORKS_FOR: offer}) as number:
            yield number

    @contextmanager
    def hosting(self, jobs: str) -> Iterator[None]:
        """Invites workers to a night.

        Args:
            jobs: its jobs file, relative to the directory of a worker.

        Raises:
            StudyError: this cannot be written.
        """
        with self._member({NIGHT: jobs}):
            yield

    @contextmanager
    def claiming(self, key: str) -> Iterator[bool]:
        """Claims a key until the context ends. Gives whether this claim is the oldest of those that are alive.

        Raises:
            StudyError: the claim cannot be written.
        """
        with self._member({CLAIMS: key}) as number:
            yield number == min(each for each, found in self._alive() if found.get(CLAIMS) == key)

    def nights(self) -> dict[int, str]:
        """Returns the jobs file of each night that workers are invited to, by the number of the night.

        Raises:
            StudyError: the database cannot be read.
        """
        return {number: str(attributes[NIGHT]) for number, attributes in self._alive() if NIGHT in attributes}

    def offers(self) -> list[OpenOffer]:
        """Returns the open offers, the oldest first.

        Raises:
            StudyError: the database cannot be read.
        """
        return [OpenOffer(number, _read(found[OFFER])) for number, found in self._alive() if OFFER in found]

    def alive(self) -> frozenset[int]:
        """Returns the numbers of all offers, workers, nights and claims whose processes are alive.

        Raises:
            StudyError: the database cannot be read.
        """
        return frozenset(number for number, _ in self._alive())

    def workers(self, offer: int) -> frozenset[int]:
        """Returns the numbers of the workers of an offer that are alive.

        Raises:
            StudyError: the database cannot be read.
        """
        return frozenset(number for number, attributes in self._alive() if attributes.get(WORKS_FOR) == offer)

    def _alive(self) -> list[tuple[int, dict[str, object]]]:
        """Returns number and attributes of each member that is alive. Those that are not are ended."""
        with self.place.guarded("read"), warnings.catch_warnings():
            # In Optuna since 2.9, and still marked as experimental in 5.0.
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self._study)
            found = self._storage.get_all_trials(self._study_id, deepcopy=False, states=(TrialState.RUNNING,))
            return [(trial.number, trial.user_attrs) for trial in found]

    @contextmanager
    def _member(self, attributes: dict[str, object]) -> Iterator[int]:
        with self.place.guarded("written"):
            template = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
            trial_id = self._storage.create_new_trial(self._study_id, template)
            self._storage.record_heartbeat(trial_id)
            number = self._storage.get_trial_number_from_id(trial_id)
        try:
            with _beating(self.place, trial_id):
                yield number
        finally:
            # A member that cannot say that it ends is ended by its missing heartbeats.
            with suppress(StudyError), self.place.guarded("written"):
                self._storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.0])


@contextmanager
def _beating(place: Place, trial_id: int) -> Iterator[None]:
    """Records a heartbeat every `BEAT_S` seconds, from another thread."""
    over = threading.Event()

    def beat() -> None:
        storage: RDBStorage | None = None
        while not over.wait(BEAT_S):
            with suppress(StudyError), place.guarded("written"):  # the database may be away for a moment
                storage = storage or _heard(place)
                storage.record_heartbeat(trial_id)
        if storage is not None:
            disconnect(storage)

    thread = threading.Thread(target=beat, name="autofit-fleet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _heard(place: Place) -> RDBStorage:
    """Opens a database with Optuna's heartbeats.

    Raises:
        StudyError: the place is not a database.
    """
    if place.url is None:
        raise StudyError(
            f"found {place.shown}; expected the URL of a database that all workers reach, such as "
            "postgresql+psycopg://host/database. Give the one that `autofit tune --study` has."
        )
    storage = database(place.url)
    storage.heartbeat_interval, storage.grace_period = BEAT_S, LOST_S
    return storage


def _read(text: object) -> SearchOffer | None:
    try:
        return SearchOffer.model_validate_json(str(text))
    except ValueError:  # pydantic's ValidationError is one
        return None
