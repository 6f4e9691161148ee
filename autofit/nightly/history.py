"""History: the append-only records of all nights, in the storage of the studies, and the order of jobs that they give.

Each job has one Optuna study, and each record is a finished trial of it; other studies of the storage are neither read
nor changed. An unfinished night is a local fact: it is resumed where its jobs file is.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofit import study as studies
from autofit.core.errors import StudyError, UsageError
from autofit.core.printable import one_line
from autofit.core.units import format_duration
from autofit.files import head_of, write_atomically
from autofit.nightly.jobs import Job, JobsFile
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord, VerdictKind, from_text, to_text
from autofit.reports.sentences import counted, instant
from autofit.reports.tables import Column, table
from autofit.study.location import StudyPlace, make_directory
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
_MARK_BYTES = 256
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
        self._place, self._mark = StudyPlace.of(location), mark
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
            return head_of(self._mark, _MARK_BYTES).decode()
        except (OSError, ValueError):  # ValueError: not UTF-8
            return ""


def read(place: StudyPlace) -> Mapping[str, Sequence[str]]:
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


def write(place: StudyPlace, records: Sequence[NightRecord]) -> list[str]:
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


def _texts(storage: "BaseStorage", place: StudyPlace, jobs: Collection[str] | None = None) -> dict[str, list[str]]:
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


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A job in the order of a night, with its records, oldest first, and why it has its place, in words.

    `done` is its record in the night that is continued; None if that has not checked it.
    """

    job: Job
    past: tuple[NightRecord, ...]
    done: NightRecord | None
    why: str


def scheduled(jobs: JobsFile, history: History, now: datetime, only: Sequence[str] = ()) -> list[Scheduled]:
    """Returns the jobs in the order in which they are checked: never checked, then the longest unchecked first.

    The order of the jobs file decides between equals. A night over named jobs does not continue another one.

    Raises:
        UsageError: a job was named that does not exist.
    """
    night = None if only else history.unfinished_night()
    known = [(job, history.of_job(job.name)) for job in selected(jobs.jobs, only)]
    found = []
    for job, past in sorted(known, key=lambda pair: pair[1][-1].at if pair[1] else ""):
        # A job that ended with an error is tried again.
        tonight = [record for record in past if record.night == night and record.verdict.kind is not VerdictKind.ERROR]
        checked = f"last checked {age(past[-1].at, now)} ({past[-1].verdict.kind.value})" if past else "never checked"
        todo = "re-check of the accepted plan" if job.plan.exists() else "first tuning, since it has no plan"
        todo = "checked already in the night that is continued" if tonight else todo
        found.append(Scheduled(job, past, tonight[-1] if tonight else None, f"{checked}: {todo}"))
    return found


def selected(jobs: Sequence[Job], names: Sequence[str]) -> list[Job]:
    """Returns the jobs with these names, in their order; all for no names.

    Raises:
        UsageError: a name is not that of a job.
    """
    known = [job.name for job in jobs]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Expected one of {', '.join(known) or 'none'}."
            raise UsageError(f"found no job {name!r} in the jobs file. {one_line(hint)}")
    return [job for job in jobs if not names or job.name in names]


def order_table(order: Sequence[Scheduled], width: int) -> str:
    """Returns the jobs in the order in which the next night checks them, with their last verdict and the reason."""
    names = [each.job.name for each in order]
    return "\n".join(table([Column("order", names), Column("why", [each.why for each in order])], width))


def order_document(order: Sequence[Scheduled], problems: Sequence[str], now: datetime) -> dict[str, Any]:
    """Returns the same as a JSON document."""
    return {
        "jobs": [
            {
                "name": each.job.name,
                "why": each.why,
                "done": each.done is not None,
                "verdict": each.past[-1].verdict.kind.value if each.past else None,
                "checked_at": each.past[-1].at if each.past else None,
                "nights": len(each.past),
                "plan": str(each.job.plan),
                "has_plan": each.job.plan.exists(),
            }
            for each in order
        ],
        "problems": list(problems),
        "now": now.isoformat(timespec="seconds"),
    }


def age(at: str, now: datetime) -> str:
    """Returns how long ago a time was, in words: "20 min 0 s ago", or "3 days ago" from two days on."""
    found = instant(at)
    if found is None:
        return "at an unknown time"
    seconds = max((now - found).total_seconds(), 0.0)
    return f"{seconds / 86400:.0f} days ago" if seconds >= 2 * 86400 else f"{format_duration(seconds)} ago"
