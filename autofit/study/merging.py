"""Merging: copies the studies of a local file into another storage, such as a database that is available again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from autofit.study.location import LOCK_WAIT_S, Place
from autofit.study.optuna_storage import DAMAGED, connected, quiet
from autofit.study.repair import heal
from autofit.study.stored import PREFIX, first_of

MERGED_FROM, MERGED = f"{PREFIX}merged_from", f"{PREFIX}merged"
"""Attributes of a copy: what it is a copy of, set before its trials; and that it is complete, set after them."""


@dataclass(frozen=True, slots=True)
class LocalStudy:
    """A study of a local file, in memory.

    Attributes:
        name: its name.
        attributes: its attributes.
        trials: its trials, at least one.
    """

    name: str
    attributes: Mapping[str, Any]
    trials: Sequence[FrozenTrial]

    @property
    def origin(self) -> str:
        """What identifies it among the studies of all local files."""
        return f"{self.name} of {self.trials[0].datetime_start}"


def read(path: Path) -> list[LocalStudy]:
    """Returns the studies of an SQLite file that have trials. Values that are damaged are deleted first.

    Raises:
        StudyError: the file cannot be read.
    """
    place = Place.of(path)
    with place.guarded("opened"):
        try:
            return _read(place)
        except DAMAGED as error:
            if not heal(path, LOCK_WAIT_S):
                raise error from None
        return _read(place)


def write(studies: Sequence[LocalStudy], place: Place) -> int:
    """Copies studies to a storage, and returns the number of trials copied.

    Each becomes a continuation of the study with its name: `name#2` beside `name`. A study that is opened later uses
    the trials of all continuations. What an earlier call copied is not copied again, and what it did not finish is made
    anew. One process at a time may copy the studies of a file.

    Raises:
        StudyError: the storage cannot be used.
    """
    with place.guarded("written"), place.exclusive(), connected(place) as storage, quiet():
        return sum([_copied(study, storage) for study in studies])


def _read(place: Place) -> list[LocalStudy]:
    with connected(place) as storage, quiet():
        names = [study.study_name for study in storage.get_all_studies()]
        numbers = {name: storage.get_study_id_from_name(name) for name in names}
        found = [
            LocalStudy(name, storage.get_study_user_attrs(number), storage.get_all_trials(number, deepcopy=False))
            for name, number in numbers.items()
        ]
    return [study for study in found if study.trials]


def _copied(study: LocalStudy, storage: BaseStorage) -> int:
    """Copies a study unless an earlier call did; returns the number of trials copied."""
    present = {found.study_name: found.user_attrs for found in storage.get_all_studies()}
    for known, attributes in list(present.items()):
        if attributes.get(MERGED_FROM) == study.origin:
            if attributes.get(MERGED):
                return 0
            storage.delete_study(storage.get_study_id_from_name(known))  # it was cut short
            del present[known]
    copy = _created(study.name, storage, present)
    for key, value in {MERGED_FROM: study.origin, **study.attributes}.items():
        storage.set_study_user_attr(copy, key, value)
    for trial in study.trials:
        storage.create_new_trial(copy, trial)
    storage.set_study_user_attr(copy, MERGED, True)
    return len(study.trials)


def _created(name: str, storage: BaseStorage, taken: Collection[str]) -> int:
    """Creates a study with the first free name among that of a study and those of its continuations."""
    first, number = first_of(name), 1
    while True:
        free = first if number == 1 else f"{first}#{number}"
        number += 1
        if free in taken:
            continue
        try:
            return storage.create_new_study([StudyDirection.MAXIMIZE], free)
        except DuplicatedStudyError:  # another machine was faster
            continue
