"""Records of nights in the storage of the studies: one Optuna study for each job, and one finished trial per record.

Reading does not load Optuna. Other studies of the storage are neither read nor changed.
"""

import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autofit.core.errors import StudyError
from autofit.nightly.record_text import check_schema, from_text, to_text
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord
from autofit.study.location import LOCK_WAIT_S, Place
from autofit.study.stored import CHECKSUM, PREFIX, SCHEMA, checksum
from autofit.study.tables import Tables, opened

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STUDIES = "nightly/"
"""Beginning of the names of the studies; the name of the job follows."""
RECORD = f"{PREFIX}night"
"""Attribute of a trial: the record as JSON. Its checksum has the ending `CHECKSUM`."""


@dataclass(frozen=True, slots=True)
class StoredNights:
    """The records of nights in a storage.

    Attributes:
        texts: for each job the texts of its records, in the order in which they were stored; None for a damaged one.
        away: why the storage cannot be reached; "" if it was read.
    """

    texts: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    away: str = ""


def read(place: Place, jobs: Collection[str] | None = None) -> StoredNights:
    """Reads the records of nights.

    Args:
        place: the storage.
        jobs: names of the jobs to read; None reads all.

    Raises:
        StudyError: the storage is not one of autofit, has records of a newer version, or its URL or file is not valid.
    """
    with place.guarded("opened"):
        try:
            if place.path is not None and (not place.path.exists() or place.path.stat().st_size == 0):
                return StoredNights()
            with opened(place) as tables:
                return StoredNights(_read(tables, place, jobs))
        except _unreachable(place) as error:
            return StoredNights(away=place.cause(error))


def write(place: Place, records: Sequence[NightRecord]) -> None:
    """Appends records whose `id` is not in the storage yet. When it returns, they are on disk.

    Values of an SQLite file that are damaged so that Optuna cannot write are deleted, as when a study is opened.

    Raises:
        StudyError: the storage cannot be reached or written, or has records of a newer version.
    """
    from autofit.study.optuna_storage import DAMAGED  # noqa: PLC0415  # Optuna, which reading does not load
    from autofit.study.repair import heal  # noqa: PLC0415

    with place.guarded("written"), place.exclusive():
        present = read(place, {record.job for record in records})
        if present.away:
            raise StudyError(not_available(place, present.away))
        try:
            _append(place, records, present)
        except DAMAGED as error:
            if place.path is None or not heal(place.path, LOCK_WAIT_S):
                raise error from None
            _append(place, records, read(place, {record.job for record in records}))


def _append(place: Place, records: Sequence[NightRecord], present: StoredNights) -> None:
    """Appends the records that are not present, each in one transaction."""
    from autofit.study.optuna_storage import connected, quiet  # noqa: PLC0415

    with connected(place) as storage, quiet():
        for job in {record.job: None for record in records}:
            seen = {found.id for text in present.texts.get(job, ()) if text and (found := from_text(text))}
            study = _study(storage, STUDIES + job)
            for record in (each for each in records if each.job == job and each.id not in seen):
                storage.create_new_trial(study, _trial(record))
                seen.add(record.id)


def not_available(place: Place, found: str) -> str:
    """Returns the message about a storage that cannot be reached."""
    return (
        f"the history at {place.shown} is not available: found {found}; expected a storage that answers. Check that it "
        "is running and can be reached."
    )


def _unreachable(place: Place) -> tuple[type[Exception], ...]:
    """Returns the exceptions of a storage that cannot be reached now. Called once one was raised."""
    if place.url is None:
        return OSError, sqlite3.OperationalError
    from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError  # noqa: PLC0415  # takes 0.2 s

    return OSError, OperationalError, InterfaceError, TimeoutError


def _read(tables: Tables, place: Place, jobs: Collection[str] | None) -> dict[str, tuple[str | None, ...]]:
    if "studies" not in tables.names:
        if place.path is not None and tables.names:
            raise ValueError("an SQLite database of another program")
        return {}
    rows = tables.select(
        "select study_id, study_name from studies where study_name like :names order by study_id", names=f"{STUDIES}%"
    )
    named = [(number, str(name).removeprefix(STUDIES)) for number, name in rows]
    return {job: _texts(tables, number, place, job) for number, job in named if jobs is None or job in jobs}


def _texts(tables: Tables, number: int, place: Place, job: str) -> tuple[str | None, ...]:
    """Returns the texts of the records of a job; None for one that was changed after it was written."""
    where = f"the job {job} in the history at {place.shown}"
    schema = tables.attributes_of_study(number).get(SCHEMA)
    check_schema(schema, where)
    trials = tables.trials(number)
    if schema is None and trials and not any(RECORD in attributes for _, _, attributes in trials):
        raise StudyError(
            f"the study {STUDIES}{job} at {place.shown} was not made by autofit: found no records; expected "
            f"{NIGHT_SCHEMA}. Rename the job, or choose another history."
        )
    texts = []
    for _, _, attributes in trials:
        text = attributes.get(RECORD)
        check_schema(text, where)
        valid = isinstance(text, str) and attributes.get(RECORD + CHECKSUM) == checksum(text)
        texts.append(text if valid else None)
    return tuple(texts)


def _study(storage: "BaseStorage", name: str) -> int:
    """Returns the Optuna study with this name, which is created if there is none."""
    from optuna.exceptions import DuplicatedStudyError  # noqa: PLC0415
    from optuna.study import StudyDirection  # noqa: PLC0415

    try:
        number = storage.get_study_id_from_name(name)
    except KeyError:
        try:
            number = storage.create_new_study([StudyDirection.MAXIMIZE], name)
        except DuplicatedStudyError:  # another process was faster
            number = storage.get_study_id_from_name(name)
    storage.set_study_user_attr(number, SCHEMA, NIGHT_SCHEMA)
    return number


def _trial(record: NightRecord) -> "FrozenTrial":
    """Returns the trial of a record, with what optuna-dashboard shows of it."""
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415

    text = to_text(record)
    attributes = {RECORD: text, RECORD + CHECKSUM: checksum(text), "verdict": record.verdict.kind.value}
    rate = math.nan if record.accepted is None else record.accepted.rate_per_s
    if not math.isfinite(rate):  # Optuna's values are numbers
        return create_trial(state=TrialState.FAIL, user_attrs=attributes)
    return create_trial(state=TrialState.COMPLETE, value=rate, user_attrs=attributes)
