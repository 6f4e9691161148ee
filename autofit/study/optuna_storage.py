"""Opens the Optuna storage at a place, and lists the exceptions of a damaged one."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from autofit.study import location, permissions, silence
from autofit.study.location import Place
from autofit.study.time_limits import connect_args

CREATING_S = (0.2, 1.0, 3.0)
"""Waits, in seconds, for another process that is making the tables of a database: Optuna fails if two make them."""
DAMAGED = (SQLAlchemyError, StorageInternalError, ValueError, LookupError, TypeError, AttributeError)
"""Exceptions from reading a study in which a byte has changed: a value is not valid UTF-8, not valid JSON, or not what
Optuna expects."""


def connect(place: Place) -> BaseStorage:
    """Opens the storage.

    Raises:
        StudyError: the path is not a study.
    """
    if place.url is not None:
        return database(place.url)
    if place.path is None:
        return InMemoryStorage()
    permissions.make_file(place.path, location.LOCK_WAIT_S)
    url = URL.create("sqlite", database=str(place.path)).render_as_string(hide_password=False)
    # Without a pool, no connection outlives a call, so that none is inherited by a forked loader worker or left open.
    kwargs = {"poolclass": NullPool, "connect_args": {"timeout": location.LOCK_WAIT_S}}
    return RDBStorage(url.replace("{", "{{").replace("}", "}}"), engine_kwargs=kwargs)  # Optuna formats the URL


def database(url: str) -> RDBStorage:
    """Opens a database. Its tables are made by one of the processes that open it first; the others try again."""
    options = {"pool_pre_ping": True, "connect_args": connect_args(make_url(url))}
    for wait_s in CREATING_S:
        try:
            return _watched(RDBStorage(url, engine_kwargs=options))
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            if isinstance(error, OperationalError) and "already exists" not in str(error):
                raise  # it cannot be reached
            time.sleep(wait_s)
    return _watched(RDBStorage(url, engine_kwargs=options))


def _watched(storage: RDBStorage) -> RDBStorage:
    """Returns the storage, connected anew, so that its connections are watched."""
    silence.watch(storage.engine)
    storage.engine.dispose()
    return storage


@contextmanager
def connected(place: Place) -> Iterator[BaseStorage]:
    """Opens the storage. No connection stays open afterwards.

    Raises:
        StudyError: the path is not a study.
    """
    storage = connect(place)
    try:
        yield storage
    finally:
        disconnect(storage)


def disconnect(storage: BaseStorage) -> None:
    """Closes the connections of a storage that this thread has used."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses Optuna's log message for a new study. Takes milliseconds, since it resets every logger's cache."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
