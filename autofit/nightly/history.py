"""The append-only records of all nights, in the storage of the studies.

Each job has one Optuna study, and each record is a finished trial of it; other studies of the storage are neither read
nor changed. While the storage is not available, records are kept in a local journal of the same kind, and are merged
once when it returns. An unfinished night is a local fact too: it is resumed where its jobs file is.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

from autofit import locks
from autofit import study as studies
from autofit.core.errors import StorageError, StudyError, UsageError
from autofit.files import write_atomically
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord, check_schema, from_text, instant, to_text
from autofit.reports.sentences import counted
from autofit.study.location import Place, make_directory
from autofit.study.stored_trials import PREFIX, SCHEMA

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

LONGEST_NIGHT = timedelta(hours=20)
"""Age after which an unfinished night is not resumed: the next night is due."""
LOCK_WAIT_S = 30.0
"""Maximum time to wait for another process that merges the records that were set aside."""
STUDIES = "nightly/"
"""Beginning of the names of the studies; the name of the job follows."""
RECORD = f"{PREFIX}night"
"""Attribute of a trial: the record as JSON."""
_NEVER = datetime.min.replace(tzinfo=UTC)


class History:
    """The records of all nights. An object is used by one thread. Several processes may share a storage.

    Attributes:
        location: where the records are stored, without secrets.
    """

    def __init__(self, place: Place, aside: Path) -> None:
        self.location = place.shown
        self._place, self._aside = place, aside
        self._texts, self._away = read(place)
        self._notes = dict[str, None]()  # a set that keeps the order
        self._kept = list[NightRecord]()  # records that are not in `_texts`
        self._known = dict[str, tuple[NightRecord, ...]]()

    @classmethod
    def open(cls, location: str | Path, aside: Path) -> Self:
        """Opens the history at `location` for reading. The first record creates it if there is none.

        If the storage cannot be reached, the history has only the records that were set aside, and `notes` says so.

        Args:
            location: path of a journal file, or a storage URL.
            aside: journal file that keeps records while the storage is not available.

        Raises:
            UsageError: the location is in memory.
            StudyError: the history has records of a newer version, which are not touched, or is not one of autofit.
        """
        place = Place.of(location)
        if place.path is None and place.url is None:
            raise UsageError(
                f"found {str(location)!r} as the history; expected a path or a database URL, since a history in memory "
                "ends with its process."
            )
        history = cls(place, aside)
        history._kept += history._set_aside()
        if history.away:
            history._note_away(history._away)
        return history

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people: on records that were lost or set aside, and on a storage that is not available."""
        return tuple(self._notes)

    @property
    def away(self) -> bool:
        """Whether the storage could not be read, so that the records of earlier nights are not known."""
        return bool(self._away)

    def jobs(self) -> tuple[str, ...]:
        """Returns the names of the jobs that have records, sorted."""
        stored = (job for job, texts in self._texts.items() if any(texts))
        return tuple(sorted({*stored, *(record.job for record in self._kept)}))

    def of_job(self, name: str) -> tuple[NightRecord, ...]:
        """Returns the records of a job, oldest first."""
        if name not in self._known:
            texts = self._texts.get(name, ())
            records = [record for text in texts if (record := from_text(text)) is not None]
            if lost := len(texts) - len(records):
                self._note(f"left out, since it cannot be read: {counted(lost, 'record')} of the job {name}")
            self._known[name] = tuple(records)
        found = {record.id: record for record in (*self._kept, *self._known[name]) if record.job == name}
        return tuple(sorted(found.values(), key=lambda record: instant(record.at) or _NEVER))

    def append(self, record: NightRecord) -> None:
        """Appends a record. When it returns, the record is on disk: in the storage, or in the file beside it.

        Records that were set aside are merged first.

        Raises:
            StudyError: neither can be written.
        """
        try:
            self._merge([record])
        except StudyError as error:
            with self._alone():
                write(Place.of(self._aside), [record])
            self._note_away(str(error))
        self._kept.append(record)

    def answers(self) -> bool:
        """Returns whether the storage can be reached now, and notes it if it cannot."""
        _, away = read(self._place, ())
        if away:
            self._note_away(away)
        return not away

    def begin_night(self, night: str) -> None:
        """Records that a night begins or is resumed, and merges the records that were set aside."""
        try:
            make_directory(self._mark.parent)
            write_atomically(self._mark, night.encode())
        except (OSError, StudyError) as error:
            self._note(f"if this night is killed, it cannot be resumed: {self._mark} could not be written ({error})")
        try:
            self._merge([])
        except StudyError as error:
            self._note_away(str(error))

    def end_night(self, night: str) -> None:
        """Records that a night ended. Another unfinished night is kept."""
        if self._marked() == night:
            with suppress(OSError):  # the mark becomes too old
                self._mark.unlink()

    def unfinished_night(self) -> str | None:
        """Returns the night that began and did not end, since its process was killed; None if there is none.

        A night that began more than `LONGEST_NIGHT` ago is not returned. The mark of a night is a file beside that of
        the records that were set aside: a night is resumed on the machine, or the shared directory, of its jobs file.
        The caller ensures that no other process runs this night.
        """
        night = self._marked()
        began = None if night is None else instant(night)
        return night if began is not None and abs(datetime.now(UTC) - began) <= LONGEST_NIGHT else None

    def _merge(self, more: Sequence[NightRecord]) -> None:
        """Writes the records that were set aside, and `more`, to the storage."""
        with self._alone():
            size, records = _size(self._aside), self._set_aside()
            if records or more:
                for note in write(self._place, [*records, *more]):
                    self._note(note)
            if size == _size(self._aside):  # else another machine has appended, and the next merge takes that too
                with suppress(OSError):  # the next merge finds these records in the storage
                    self._aside.unlink()
        if records:
            self._note(f"merged into the history: {counted(len(records), 'record')} from {self._aside}")
        if self.away:
            (self._texts, self._away), self._known = read(self._place), {}

    def _alone(self) -> AbstractContextManager[None]:
        """Locks the records that were set aside against other processes on this machine."""
        return locks.held(f"aside-{self._aside}", f"the file {self._aside}", LOCK_WAIT_S)

    def _set_aside(self) -> list[NightRecord]:
        """Returns the records that were set aside, and notes those that cannot be read."""
        texts = [text for of_job in read(Place.of(self._aside))[0].values() for text in of_job]
        records = [record for text in texts if (record := from_text(text)) is not None]
        if lost := len(texts) - len(records):
            self._note(f"left out, since it cannot be read: {counted(lost, 'record')} of {self._aside}")
        return records

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _note_away(self, reason: str) -> None:
        self._note(f"{reason} Records are kept in {self._aside} until they can be merged.")

    @property
    def _mark(self) -> Path:
        """File that contains the identifier of the night that runs."""
        return self._aside.with_name(f"{self._aside.name.removesuffix('.aside.journal')}.night")

    def _marked(self) -> str | None:
        try:
            return self._mark.read_text(encoding="utf-8")
        except (OSError, ValueError):  # ValueError: not UTF-8
            return None


def read(place: Place, jobs: Collection[str] | None = None) -> tuple[Mapping[str, Sequence[str]], str]:
    """Returns for each job, or each named one, the texts of its records in order, and why the storage is away or "".

    Raises:
        StudyError: the storage is not one of autofit, has records of a newer version, or its URL or file is not valid.
    """
    if place.path is not None and not place.path.exists():
        return {}, ""  # the first night; Optuna need not be loaded to see that
    try:
        with place.guarded("read"):
            storage = studies.existing(place)
            found = {} if storage is None else _read(storage, place, jobs)
            studies.disconnect(storage)
    except StorageError as error:
        return {}, str(error)
    return found, ""


def write(place: Place, records: Sequence[NightRecord]) -> list[str]:
    """Appends records whose `id` is not in the storage yet, and returns notes. When it returns, they are on disk.

    Raises:
        StudyError: the storage cannot be reached or written, or has records of a newer version.
    """
    notes = list[str]()
    with place.guarded("written"):
        storage = studies.connect(place, notes)
        present = _read(storage, place, {record.job for record in records})
        known = {found.id for texts in present.values() for text in texts if (found := from_text(text))}
        for record in {each.id: each for each in records if each.id not in known}.values():
            with studies.quiet():
                study = studies.study_in(storage, STUDIES + record.job)
            if SCHEMA not in study.user_attrs:
                study.set_user_attr(SCHEMA, NIGHT_SCHEMA)
            study.add_trial(_trial(record))
        studies.disconnect(storage)
    return notes


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
