"""Opens the Optuna storage at a place. A journal file is created for its owner alone, checked, and locked.

Each operation is one line of the journal, and is on disk when Optuna's call returns.
"""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from autofit import locks
from autofit.core.errors import StudyError
from autofit.study.location import StudyPlace, check_file, make_directory
from autofit.study.stored_trials import SCHEMA

LOCK_WAIT_S = 30.0
"""Maximum time to wait for another process that is writing to the journal."""
CREATING_S = 2.0
"""Wait for another process that is making the tables of a database: Optuna fails if two make them."""
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def connect(place: StudyPlace, notes: list[str] | None = None) -> BaseStorage:
    """Opens a storage for writing, and creates it if there is none.

    `notes` receives a note if the end of the journal was cut off.

    Raises:
        StudyError: the path is not a journal, or other users could have written it.
    """
    if place.url is not None:
        return _database(place.url)
    if place.path is None:
        return InMemoryStorage()
    make_directory(place.path.parent)
    with suppress(FileExistsError):
        os.close(os.open(place.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o600))
    check_file(place.path)
    lock = _JournalLock(place.path)
    lock.acquire()
    lock.release()
    if lock.has_cut and notes is not None:
        notes.append("the last line of the study was incomplete, as after a crash, and was cut off")
    return JournalStorage(JournalFileBackend(str(place.path), lock))


def existing(place: StudyPlace) -> BaseStorage | None:
    """Opens a storage for reading: nothing is changed or created. None if there is no such file, or an empty one.

    Raises:
        StudyError: the path is not a journal.
    """
    if place.url is not None:
        import sqlalchemy  # noqa: PLC0415  # takes 0.5 s

        parsed = sqlalchemy.make_url(place.url)
        engine, path = sqlalchemy.create_engine(parsed), Path(parsed.database or "")
        is_path = parsed.get_backend_name() == "sqlite" and "uri" not in parsed.query
        if is_path and path.parent.is_dir() and not path.is_file():  # SQLite would create it
            return None
        made = sqlalchemy.inspect(engine).has_table("studies")  # by Optuna
        engine.dispose()
        return RDBStorage(place.url, skip_table_creation=True) if made else None
    if place.path is None or not os.path.lexists(place.path):
        return None
    check_file(place.path)
    return JournalStorage(JournalFileBackend(str(place.path))) if place.path.stat().st_size else None


def study_in(storage: BaseStorage, name: str, schema: str, where: str) -> optuna.Study:
    """Loads a study of a schema, or creates it.

    Raises:
        StudyError: as in `check_schema`.
    """
    sampler = optuna.samplers.RandomSampler()  # never used; the cheapest to create
    with quiet():
        if name in optuna.get_all_study_names(storage):  # creating it again would add a line to a journal
            study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
        else:
            study = optuna.create_study(
                storage=storage, study_name=name, sampler=sampler, direction="maximize", load_if_exists=True
            )
        check_schema(study, schema, where)
        if SCHEMA not in study.user_attrs:
            study.set_user_attr(SCHEMA, schema)
    return study


def check_schema(study: optuna.Study, schema: str, where: str) -> None:
    """Refuses a study that has not this schema. A new study has none yet.

    Raises:
        StudyError: it is of another program or of another schema.
    """
    found = study.user_attrs.get(SCHEMA)
    if found == schema or (found is None and not study.get_trials(deepcopy=False)):
        return
    raise StudyError(
        f"the study {study.study_name} at {where} cannot be used: found "
        f"{'trials but no schema' if found is None else f'the schema {found}'}; expected {schema}, which this version "
        "of autofit writes. Nothing was changed. Choose another study or history, or the version of autofit that wrote "
        "it."
    )


def studies_in(storage: BaseStorage) -> list[optuna.Study]:
    """Returns the studies of a storage in the order in which they were made."""
    return [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]


def disconnect(storage: BaseStorage | None) -> None:
    """Closes the connections to a database that this thread has used. The storage can still be used."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Optuna's progress lines and its warnings about experimental features out of the user's log."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


class _JournalLock(JournalFileOpenLock):
    """Locks a journal for one operation, and cuts off the line that a killed writer or a full disk left incomplete."""

    # It uses `flock`, which the kernel releases however a process ends. Optuna's own locks are files, for which the
    # next writer waits 30 s if a process was killed while it wrote. `has_cut`: whether something was cut off so far.

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path, self._descriptor, self.has_cut = path, -1, False

    def acquire(self) -> bool:
        """Waits for other processes, at most `LOCK_WAIT_S`, and returns True."""
        descriptor, free = os.open(self._path, os.O_RDWR | _NO_LINKS), True
        try:
            with suppress(OSError):  # some network file systems have no locks
                free = locks.locked(descriptor, LOCK_WAIT_S)
            if not free:
                raise TimeoutError(f"it is locked by {locks.holder_of(self._path)}")
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                with open(descriptor, "rb", closefd=False) as file:
                    os.ftruncate(descriptor, file.read().rfind(b"\n") + 1)
                self.has_cut = True
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock."""
        os.close(self._descriptor)


def _database(url: str) -> RDBStorage:
    """Opens a database. One of the processes that open it first makes its tables; the others try again."""
    from sqlalchemy.exc import DatabaseError  # noqa: PLC0415  # takes 0.5 s

    options = {"pool_pre_ping": True}  # a server may close a connection while a plan runs
    try:
        return RDBStorage(url, engine_kwargs=options)
    except DatabaseError:
        time.sleep(CREATING_S)
        return RDBStorage(url, engine_kwargs=options)
