"""History: the append-only records of all nights, in the storage of the studies.

While the storage is not available, records are kept in a local file, and are merged once when it returns. An unfinished
night is a local fact too: it is resumed where its jobs file is.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from autofit.core.errors import StudyError, UsageError
from autofit.files import write_atomically
from autofit.nightly import stored_nights
from autofit.nightly.instants import instant
from autofit.nightly.record_text import from_text
from autofit.nightly.records import NightRecord
from autofit.nightly.set_aside import SetAside
from autofit.nightly.stored_nights import StoredNights
from autofit.reports.sentences import counted
from autofit.study import permissions
from autofit.study.location import Place

LONGEST_NIGHT = timedelta(hours=20)
"""Age after which an unfinished night is not resumed: the next night is due."""
_NEVER = datetime.min.replace(tzinfo=UTC)


class History:
    """The records of all nights. An object is used by one thread. Several processes may share a storage.

    Attributes:
        location: where the records are stored, without secrets.
    """

    def __init__(self, place: Place, aside: SetAside, stored: StoredNights) -> None:
        self.location = place.shown
        self._place, self._aside, self._stored = place, aside, stored
        self._notes = dict[str, None]()  # a set that keeps the order
        self._kept = list[NightRecord]()  # records that are not in `_stored`
        self._known = dict[str, tuple[NightRecord, ...]]()

    @classmethod
    def open(cls, location: str | Path, aside: Path) -> Self:
        """Opens the history at `location` for reading. The first record creates it if there is none.

        If the storage cannot be reached, the history has only the records that were set aside, and `notes` says so.

        Args:
            location: path of a journal file, or a storage URL.
            aside: file that keeps records while the storage is not available.

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
        history = cls(place, SetAside(aside), stored_nights.read(place))
        history._review()
        return history

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people: on records that were lost or set aside, and on a storage that is not available."""
        return tuple(self._notes)

    @property
    def away(self) -> bool:
        """Whether the storage could not be read, so that the records of earlier nights are not known."""
        return bool(self._stored.away)

    def jobs(self) -> tuple[str, ...]:
        """Returns the names of the jobs that have records, sorted."""
        stored = (job for job, texts in self._stored.texts.items() if any(texts))
        return tuple(sorted({*stored, *(record.job for record in self._kept)}))

    def of_job(self, name: str) -> tuple[NightRecord, ...]:
        """Returns the records of a job, oldest first."""
        if name not in self._known:
            texts = self._stored.texts.get(name, ())
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
            self._aside.append(record)
            self._note_away(str(error))
        self._kept.append(record)

    def answers(self) -> bool:
        """Returns whether the storage can be reached now, and notes it if it cannot."""
        found = stored_nights.read(self._place, ())
        if found.away:
            self._note_away(found.away)
        return not found.away

    def begin_night(self, night: str) -> None:
        """Records that a night begins or is resumed, and merges the records that were set aside.

        Args:
            night: identifier of the night: the UTC time at which it began, in ISO 8601.
        """
        self._write_mark(night)
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
        with self._aside.taken() as (records, lost):
            if records or more:
                stored_nights.write(self._place, [*records, *more])
        if lost:
            self._note(f"deleted, since it could not be read: {counted(lost, 'line')} of {self._aside.path}")
        if records:
            self._note(f"merged into the history: {counted(len(records), 'record')} from {self._aside.path}")
        if self._stored.away:
            self._stored, self._known = stored_nights.read(self._place), {}

    def _review(self) -> None:
        """Takes over the records that were set aside, and notes what is missing."""
        records, lost = self._aside.read()
        self._kept += records
        if lost:
            self._note(f"left out, since it cannot be read: {counted(lost, 'line')} of {self._aside.path}")
        if self._stored.away:
            self._note_away(self._stored.away)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _note_away(self, reason: str) -> None:
        self._note(f"{reason} Records are kept in {self._aside.path} until they can be merged.")

    @property
    def _mark(self) -> Path:
        """File that contains the identifier of the night that runs."""
        return self._aside.path.with_name(f"{self._aside.path.name.removesuffix('.aside.jsonl')}.night")

    def _marked(self) -> str | None:
        try:
            return self._mark.read_text(encoding="utf-8")
        except (OSError, ValueError):  # ValueError: not UTF-8
            return None

    def _write_mark(self, night: str) -> None:
        try:
            permissions.make_directory(self._mark.parent)
            write_atomically(self._mark, night.encode())
        except (OSError, StudyError) as error:
            self._note(f"if this night is killed, it cannot be resumed: {self._mark} could not be written ({error})")
