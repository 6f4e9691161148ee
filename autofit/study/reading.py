"""Reading a study without changing it, for people who look at it: nothing is settled, healed, upgraded or created.

An SQLite file is opened read-only. Optuna is not loaded, which would take longer than everything else.
"""

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import quote

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.trial import Trial
from autofit.study.stored import DROPPED, SCHEMA, STUDY_SCHEMA, Drop, decoded, rejudged

SQLITE_HEAD = b"SQLite format 3\0"
"""First bytes of every SQLite file (https://www.sqlite.org/fileformat.html)."""
_FINISHED = ("COMPLETE", "PRUNED", "FAIL")
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, ValueError, OSError)

Select: TypeAlias = Callable[[str, Mapping[str, int]], Sequence[Sequence[Any]]]
"""Runs a query and returns its rows."""


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
        return re.sub(r"#[0-9]+$", "", self.name)


def read_studies(location: str | Path) -> list[ReadStudy]:
    """Returns the studies of a storage in the order in which they were made.

    Args:
        location: path of an SQLite file, or a database URL.

    Raises:
        StudyError: it cannot be read, or holds no study of autofit.
    """
    with _opened(location) as (select, shown):
        studies = [
            _read(select, number, name) for number, name in select("select * from studies order by study_id", {})
        ]
    found = [study for study in studies if study.notes.get(SCHEMA) == STUDY_SCHEMA]
    if not found:
        newer = next((str(study.notes[SCHEMA]) for study in studies if SCHEMA in study.notes), "")
        what = f"studies of the schema {newer}" if newer else f"{len(studies)} studies, none made by autofit"
        raise StudyError(
            f"{shown} cannot be shown: found {what}; expected {STUDY_SCHEMA}. Name the study of `autofit tune --study`."
        )
    return found


def _read(select: Select, number: int, name: str) -> ReadStudy:
    """Returns one study. Columns go by their place, since `key` is a reserved word in MySQL."""
    by = {"study": number}
    notes = _values(select("select * from study_user_attributes where study_id = :study", by))[number]
    of_study = "join trials t on a.trial_id = t.trial_id where t.study_id = :study"
    attributes = _values(select(f"select a.* from trial_user_attributes a {of_study}", by))
    rows = select("select trial_id, number, state from trials where study_id = :study order by number", by)
    return ReadStudy.of(name, notes, [(place, str(state), attributes[key]) for key, place, state in rows])


def _values(rows: Sequence[Sequence[Any]]) -> defaultdict[int, dict[str, Any]]:
    """Returns the attributes of each owner from rows of number, owner, key and value."""
    found = defaultdict[int, dict[str, Any]](dict)
    for _, owner, key, value in rows:
        found[owner][key] = json.loads(value)
    return found


@contextmanager
def _opened(location: str | Path) -> Iterator[tuple[Select, str]]:
    """Opens a storage for reading; gives what runs queries, and the location as people may see it."""
    text = str(location)
    if "://" in text and not text.startswith("sqlite://"):
        with _database(text) as found:
            yield found
        return
    path = Path(text.removeprefix("sqlite://").removeprefix("/") if "://" in text else text).expanduser().absolute()
    try:
        with path.open("rb") as file:
            if file.read(len(SQLITE_HEAD)) != SQLITE_HEAD:
                raise ValueError("not an SQLite file")
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10)) as connection:
            yield lambda query, values: connection.execute(query, values).fetchall(), str(path)
    except _UNREADABLE as error:
        what = error.strerror if isinstance(error, OSError) else None
        raise StudyError(
            f"the study {path} cannot be read: found {what or error}; expected a file that `autofit tune` has written. "
            "Check the path, and that no search is writing to it now."
        ) from None


@contextmanager
def _database(url: str) -> Iterator[tuple[Select, str]]:
    """Opens a database by its URL."""
    from sqlalchemy import NullPool, create_engine, text  # noqa: PLC0415  # takes longer than to read an SQLite file

    from autofit.study.location import Place  # noqa: PLC0415  # loads Optuna

    place = Place.of(url)
    with place.guarded("opened"), create_engine(url, poolclass=NullPool).connect() as connection:
        yield lambda query, values: connection.execute(text(query), dict(values)).fetchall(), place.shown
