"""Reading a study without changing it, for people who look at it: nothing is settled, healed, upgraded or created.

Optuna is not loaded, which would take longer than everything else.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.trial import Trial
from autofit.study.location import Place
from autofit.study.stored import DROPPED, SCHEMA, STUDY_SCHEMA, Drop, decoded, first_of, rejudged
from autofit.study.tables import opened

_FINISHED = ("COMPLETE", "PRUNED", "FAIL")
_UNREADABLE = (sqlite3.Error, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class ReadTrial:
    """A finished trial as it is stored.

    Attributes:
        trial: number, plan, outcome and purpose.
        environment: where it was measured.
        memory_bytes: the budget that it was judged by.
        started: when it began.
    """

    trial: Trial
    environment: Environment
    memory_bytes: int
    started: datetime

    def under(self, memory_bytes: int, *, earlier: bool) -> Trial | None:
        """Returns the trial judged by another budget; None if its outcome under that is not known."""
        outcome = rejudged(self.trial.outcome, self.memory_bytes, memory_bytes)
        return None if outcome is None else self.trial.model_copy(update={"outcome": outcome, "earlier": earlier})


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
    trials: tuple[ReadTrial, ...]
    unreadable: int = 0

    @classmethod
    def of(cls, name: str, notes: Mapping[str, Any], rows: Sequence[tuple[int, str, Mapping[str, Any]]]) -> Self:
        """Returns the study of these attributes and trials, each with number, state and attributes."""
        gone = {number for drop in notes.get(DROPPED, []) for number in Drop.model_validate(drop).trials}
        found, unreadable = list[ReadTrial](), 0
        for number, state, attributes in rows:
            record = decoded(attributes, notes, finished=state in _FINISHED) if number not in gone else None
            unreadable += record is None and number not in gone
            if record is None or (record.outcome is None and record.request.alive):
                continue
            outcome = record.outcome or Outcome(status=Status.CRASHED, reason=DIED)
            request = record.request
            trial = Trial(number=number, plan=request.plan, outcome=outcome, purpose=request.purpose)
            found.append(ReadTrial(trial, record.environment, request.memory_bytes, request.started))
        return cls(name, notes, tuple(sorted(found, key=lambda each: each.started)), unreadable)

    @property
    def family(self) -> str:
        """The name without the number of a continuation: `a#2` continues `a`."""
        return first_of(self.name)


def read_studies(location: str | Path) -> list[ReadStudy]:
    """Returns the studies of a storage in the order in which they were made.

    Args:
        location: path of an SQLite file, or a database URL.

    Raises:
        StudyError: it cannot be read, or holds no study of autofit.
    """
    place = Place.of(location)
    with _readable(place), opened(place) as tables:
        names = tables.select("select * from studies order by study_id")
        notes = {number: tables.attributes_of_study(number) for number, _ in names}
        found = [
            ReadStudy.of(name, notes[number], tables.trials(number))
            for number, name in names
            if notes[number].get(SCHEMA) == STUDY_SCHEMA
        ]
    if not found:
        newer = next((str(each[SCHEMA]) for each in notes.values() if SCHEMA in each), "")
        what = f"studies of the schema {newer}" if newer else f"{len(names)} studies, none made by autofit"
        raise StudyError(
            f"{place.shown} cannot be shown: found {what}; expected {STUDY_SCHEMA}. Name the study of "
            "`autofit tune --study`."
        )
    return found


def read_notes(location: str | Path, name: str) -> list[Any]:
    """Returns the notes with this name on the studies of a storage, in the order in which the studies were made.

    Args:
        location: path of an SQLite file, or a database URL.
        name: name of the notes.

    Returns:
        Their values; [] if there is no storage, or none that can be read. Damaged notes are left out.
    """
    found: list[Any] = []
    with suppress(StudyError, *_UNREADABLE):
        place = Place.of(location)
        with _readable(place), opened(place) as tables:
            for _, _, key, value in tables.select("select * from study_user_attributes order by study_id"):
                with suppress(ValueError):
                    found += [json.loads(value)] if key == name else []
    return found


@contextmanager
def _readable(place: Place) -> Iterator[None]:
    """Raises failures of reading as `StudyError`."""
    if place.url is not None:
        with place.guarded("opened"):
            yield
        return
    try:
        yield
    except _UNREADABLE as error:
        what = error.strerror if isinstance(error, OSError) else None
        raise StudyError(
            f"the study {place.shown} cannot be read: found {what or error}; expected a file that `autofit tune` has "
            "written. Check the path, and that no search is writing to it now."
        ) from None
