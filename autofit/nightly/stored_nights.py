"""Records of nights in the storage of the studies: one Optuna study for each job, and one finished trial per record.

Other studies of the storage are neither read nor changed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autofit import study as studies
from autofit.core.errors import StorageError, StudyError
from autofit.nightly.record_text import check_schema, from_text, to_text
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord
from autofit.study.location import Place
from autofit.study.records import PREFIX, SCHEMA

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STUDIES = "nightly/"
"""Beginning of the names of the studies; the name of the job follows."""
RECORD = f"{PREFIX}night"
"""Attribute of a trial: the record as JSON."""


@dataclass(frozen=True, slots=True)
class StoredNights:
    """The records of nights in a storage.

    Attributes:
        texts: for each job the texts of its records, in the order in which they were stored.
        away: why the storage cannot be reached; "" if it was read.
    """

    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    away: str = ""


def read(place: Place, jobs: Collection[str] | None = None) -> StoredNights:
    """Reads the records of nights.

    Args:
        place: the storage.
        jobs: names of the jobs to read; None reads all.

    Raises:
        StudyError: the storage is not one of autofit, has records of a newer version, or its URL or file is not valid.
    """
    if place.path is not None and not place.path.exists():
        return StoredNights()  # the first night; Optuna need not be loaded to see that
    try:
        with place.guarded("read"):
            storage = studies.existing(place)
            found = {} if storage is None else _read(storage, place, jobs)
            studies.disconnect(storage)
    except StorageError as error:
        return StoredNights(away=str(error))
    return StoredNights(found)


def write(place: Place, records: Sequence[NightRecord]) -> None:
    """Appends records whose `id` is not in the storage yet. When it returns, they are on disk.

    Raises:
        StudyError: the storage cannot be reached or written, or has records of a newer version.
    """
    with place.guarded("written"):
        storage = studies.connect(place)
        present = _read(storage, place, {record.job for record in records})
        known = {found.id for texts in present.values() for text in texts if (found := from_text(text))}
        for record in {each.id: each for each in records if each.id not in known}.values():
            with studies.quiet():
                study = studies.study_in(storage, STUDIES + record.job)
            if SCHEMA not in study.user_attrs:
                study.set_user_attr(SCHEMA, NIGHT_SCHEMA)
            study.add_trial(_trial(record))
        studies.disconnect(storage)


def _read(storage: "BaseStorage", place: Place, jobs: Collection[str] | None) -> dict[str, list[str]]:
    found = {each.study_name: each for each in studies.studies_in(storage) if each.study_name.startswith(STUDIES)}
    named = {name.removeprefix(STUDIES): study for name, study in found.items()}
    return {job: _texts(study, place) for job, study in named.items() if jobs is None or job in jobs}


def _texts(study: "optuna.Study", place: Place) -> list[str]:
    """Returns the texts of the records of a job."""
    where, schema = f"the study {study.study_name} at {place.shown}", study.user_attrs.get(SCHEMA)
    texts = [str(trial.user_attrs.get(RECORD, "")) for trial in study.get_trials(deepcopy=False)]
    for each in (schema, *texts):
        check_schema(each, where)
    if schema is None and any(texts) != bool(texts):
        raise StudyError(
            f"{where} was not made by autofit: found no records; expected {NIGHT_SCHEMA}. Rename the job, or choose "
            "another history."
        )
    return texts


def _trial(record: NightRecord) -> "FrozenTrial":
    """Returns the trial of a record, with what optuna-dashboard shows of it."""
    create, states = studies.optuna.trial.create_trial, studies.optuna.trial.TrialState
    attributes = {RECORD: to_text(record), "verdict": record.verdict.kind.value}
    rate = math.nan if record.accepted is None else record.accepted.rate_per_s
    if not math.isfinite(rate):  # Optuna's values are numbers
        return create(state=states.FAIL, user_attrs=attributes)
    return create(state=states.COMPLETE, value=rate, user_attrs=attributes)
