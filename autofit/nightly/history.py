"""The append-only records of all nights, in the storage of the studies.

Each job has one Optuna study, and each record is a finished trial of it; other studies of the storage are neither read
nor changed. An unfinished night is a local fact: it is resumed where its jobs file is.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from autofit import study as studies
from autofit.core.errors import StudyError
from autofit.files import write_atomically
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord, from_text, instant, to_text
from autofit.reports.sentences import counted
from autofit.study.location import Place, make_directory
from autofit.study.stored_trials import PREFIX

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

LONGEST_NIGHT = timedelta(hours=20)
"""Age after which an unfinished night is not resumed: the next night is due."""
STUDIES = "nightly/"
"""Beginning of the names of the studies; the name of the job follows."""
RECORD = f"{PREFIX}night"
"""Attribute of a trial: the record as JSON."""
_NEVER = datetime.min.replace(tzinfo=UTC)


class History:
    """The records of all nights. An object is used by one thread. Several processes may share a storage.

    The first record creates the storage if there is none.

    Args:
        location: path of a journal file, or a storage URL.
        mark: file that holds the identifier of the night that runs.

    Attributes:
        unwritten: records that could not be written yet. Each `append` tries again.

    Raises:
        StudyError: the storage cannot be read, has records of a newer version, or is not one of autofit.
    """

    def __init__(self, location: str | Path, mark: Path) -> None:
        self._place, self._mark = Place.of(location), mark
        self._texts = read(self._place)
        self._notes = dict[str, None]()  # a set that keeps the order
        self._kept = list[NightRecord]()  # records that are not in `_texts`
        self._stored = dict[str, list[NightRecord]]()  # those of `_texts`, by job, once they were read
        self.unwritten = list[NightRecord]()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people: on records that cannot be read, and on a journal whose end was cut off."""
        return tuple(self._notes)

    def jobs(self) -> tuple[str, ...]:
        """Returns the names of the jobs that have records, sorted."""
        stored = (job for job, texts in self._texts.items() if any(texts))
        return tuple(sorted({*stored, *(record.job for record in self._kept)}))

    def of_job(self, name: str) -> tuple[NightRecord, ...]:
        """Returns the records of a job, oldest first."""
        if name not in self._stored:
            texts = self._texts.get(name, ())
            self._stored[name] = list(_records(texts))
            if lost := len(texts) - len(self._stored[name]):
                self._note(f"left out, since it cannot be read: {counted(lost, 'record')} of the job {name}")
        kept = [record for record in self._kept if record.job == name]
        return tuple(sorted((*self._stored[name], *kept), key=lambda record: instant(record.at) or _NEVER))

    def append(self, *records: NightRecord) -> None:
        """Appends records, and those that could not be written before. When it returns, they are on disk.

        Raises:
            StudyError: they cannot be written.
        """
        self._kept += records
        self.unwritten += records
        if self.unwritten:
            for note in write(self._place, self.unwritten):
                self._note(note)
            self.unwritten.clear()

    def begin_night(self, night: str) -> None:
        """Records that a night begins or is resumed."""
        try:
            make_directory(self._mark.parent)
            write_atomically(self._mark, night.encode())
        except (OSError, StudyError) as error:
            self._note(f"if this night is killed, it cannot be resumed: {self._mark} could not be written ({error})")

    def end_night(self, night: str) -> None:
        """Records that a night ended. Another unfinished night is kept."""
        if self._marked() == night:
            with suppress(OSError):  # the mark becomes too old
                self._mark.unlink()

    def unfinished_night(self) -> str | None:
        """Returns the night that began and did not end, since its process was killed; None if there is none.

        A night that began more than `LONGEST_NIGHT` ago is not returned. A night is resumed on the machine, or the
        shared directory, of its jobs file. The caller ensures that no other process runs this night.
        """
        night = self._marked()
        began = instant(night)
        return night if began is not None and abs(datetime.now(UTC) - began) <= LONGEST_NIGHT else None

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _marked(self) -> str:
        try:
            return self._mark.read_text(encoding="utf-8")
        except (OSError, ValueError):  # ValueError: not UTF-8
            return ""


def read(place: Place) -> Mapping[str, Sequence[str]]:
    """Returns for each job the texts of its records in order.

    Raises:
        StudyError: the storage does not answer, is not one of autofit, or has records of a newer version.
    """
    if place.path is not None and not place.path.exists():
        return {}  # the first night; Optuna need not be loaded to see that
    with place.guarded("read"):
        storage = studies.existing(place)
        found = {} if storage is None else _texts(storage, place)
        studies.disconnect(storage)
    return found


def write(place: Place, records: Sequence[NightRecord]) -> list[str]:
    """Appends records whose `id` is not in the storage yet, and returns notes. When it returns, they are on disk.

    Raises:
        StudyError: the storage cannot be reached or written, or has records of a newer version.
    """
    notes = list[str]()
    with place.guarded("written"):
        storage = studies.connect(place, notes)
        present = _texts(storage, place, {record.job for record in records})
        known = {found.id for texts in present.values() for found in _records(texts)}
        for record in {each.id: each for each in records if each.id not in known}.values():
            study = studies.study_in(storage, STUDIES + record.job, NIGHT_SCHEMA, place.shown)
            study.add_trial(_trial(record))
        studies.disconnect(storage)
    return notes


def _records(texts: Iterable[str]) -> Iterable[NightRecord]:
    """Returns the records of the texts that can be read."""
    return (record for text in texts if (record := from_text(text)) is not None)


def _texts(storage: "BaseStorage", place: Place, jobs: Collection[str] | None = None) -> dict[str, list[str]]:
    """Returns the texts of the records of each job, or each named one."""
    found = dict[str, list[str]]()
    for study in studies.studies_in(storage):
        job = study.study_name.removeprefix(STUDIES)
        if job != study.study_name and (jobs is None or job in jobs):
            studies.check_schema(study, NIGHT_SCHEMA, place.shown)
            found[job] = [str(trial.user_attrs.get(RECORD, "")) for trial in study.get_trials(deepcopy=False)]
    return found


def _trial(record: NightRecord) -> "FrozenTrial":
    """Returns the trial of a record, with what optuna-dashboard shows of it."""
    create, states = studies.optuna.trial.create_trial, studies.optuna.trial.TrialState
    attributes = {RECORD: to_text(record), "verdict": record.verdict.kind.value}
    rate = math.nan if record.accepted is None else record.accepted.rate_per_s
    if not math.isfinite(rate):  # Optuna's values are numbers
        return create(state=states.FAIL, user_attrs=attributes)
    return create(state=states.COMPLETE, value=rate, user_attrs=attributes)
