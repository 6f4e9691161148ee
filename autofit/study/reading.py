"""Reading a study without changing it, for people who look at it: nothing is settled, cut off or created."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import optuna

from autofit.core.errors import StudyError
from autofit.core.outcome import DIED, Outcome, Status
from autofit.study.location import Place
from autofit.study.records import SCHEMA, STUDY_SCHEMA, StoredTrial, readable
from autofit.study.storages import disconnect, existing, studies_in


@dataclass(frozen=True, slots=True)
class ReadStudy:
    """A study as it is stored.

    Attributes:
        name: its name in the storage.
        notes: its attributes.
        trials: the finished trials and those whose process died, oldest first. Dropped trials are left out.
        unreadable: number of trials without a readable record.
    """

    name: str
    notes: Mapping[str, Any]
    trials: tuple[StoredTrial, ...]
    unreadable: int = 0

    @classmethod
    def of(cls, study: optuna.Study) -> Self:
        """Reads a study."""
        notes, died = study.user_attrs, Outcome(status=Status.CRASHED, reason=DIED)
        found, unreadable = readable(study.get_trials(deepcopy=False), notes)
        ended = [each if each.outcome else replace(each, outcome=died) for each in found if each.ended]
        return cls(study.study_name, notes, tuple(ended), unreadable)


def read_studies(location: str | Path) -> list[ReadStudy]:
    """Returns the studies of a storage in the order in which they were made.

    Args:
        location: path of a journal file, or a storage URL.

    Raises:
        StudyError: it cannot be read, or holds no study of autofit.
    """
    place = Place.of(location)
    with place.guarded("read"):
        storage = existing(place)
        studies = [] if storage is None else studies_in(storage)
        found = [ReadStudy.of(each) for each in studies if each.user_attrs.get(SCHEMA) == STUDY_SCHEMA]
        disconnect(storage)
    if not found:
        what = "no file, or an empty one" if storage is None else f"{len(studies)} studies, none made by this version"
        raise StudyError(
            f"{place.shown} cannot be shown: found {what}; expected a study of the schema {STUDY_SCHEMA}. Name the "
            "study of `autofit tune --study`."
        )
    return found
