"""Where a study is stored (memory, an SQLite file or a database), and how that place is shown without secrets.

Loads neither Optuna nor SQLAlchemy, which would take longer than reading a study.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from autofit import locks
from autofit.core.errors import StorageError, StudyError, UsageError
from autofit.core.units import format_duration
from autofit.study import permissions
from autofit.study.silence import ANSWER_S, limited

LOCK_WAIT_S = 30.0
"""Maximum time to wait for another process that holds the study's file or directory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a study is stored.

    Attributes:
        shown: the place without secrets.
        path: path of an SQLite file.
        url: URL of a database. Without path and URL, the study is in memory.
        secrets: parts of the URL that must not be shown, longest first.
    """

    shown: str
    path: Path | None = None
    url: str | None = None
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, location: str | Path | None) -> Self:
        """Parses the user's location: None or ":memory:", a path, or a database URL.

        Raises:
            UsageError: the location is empty, or is in the home of an unknown user.
        """
        if location == "":
            raise UsageError(
                "the study location is empty, perhaps from an unset variable; expected a path, a database URL or "
                "':memory:'. Set one, or leave it out."
            )
        text = "" if location is None else str(location)
        if isinstance(location, str) and "://" in text:
            if not text.startswith("sqlite://") or "?" in text:
                return cls(_redacted(text), url=text, secrets=_secrets(text))
            text = text.removeprefix("sqlite://").removeprefix("/")
        if text in ("", ":memory:"):
            return cls("memory")
        # Absolute, since the user's code may change the working directory.
        try:
            path = Path(text).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(
                f"the study {text!r} cannot be found: {error}; expected a path. Write the full path."
            ) from None
        return cls(str(path), path=path)

    @contextmanager
    def guarded(self, doing: str, seconds: float = ANSWER_S) -> Iterator[None]:
        """Raises failures of the storage as `StudyError`, also that of a database that is silent for this long."""
        try:
            with nullcontext() if self.url is None else limited(seconds):
                yield
        except _storage_failures() as error:
            # The cause is left out: tracebacks of database drivers can show the password.
            raise StorageError(self._message(error, doing)) from None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lets one process at a time create the file and its tables: Optuna fails if two create them at once."""
        if self.path is None:
            yield
            return
        permissions.make_directory(self.path.parent)
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            free = True
            with suppress(
                OSError
            ):  # some network file systems have no locks; two concurrent first runs may then collide
                free = locks.locked(descriptor, LOCK_WAIT_S)
            if not free:
                raise StudyError(self._locked(self.path.parent))
            yield
        finally:
            os.close(descriptor)

    def _locked(self, path: Path) -> str:
        return (
            f"the study at {self.shown} is locked: found {path} held by {locks.holder_of(path)}; expected it to be "
            f"free within {format_duration(LOCK_WAIT_S)}. Wait until that process ends, or end it, then run again: "
            "earlier records are kept."
        )

    def cause(self, error: BaseException) -> str:
        """Returns the failure that is behind an error of the storage, as one line without secrets."""
        if type(error).__module__.startswith("optuna."):  # it says less than the error that it was raised for
            error = error.__cause__ or error.__context__ or error
        while (inner := getattr(error, "orig", None) or error.__cause__) is not None:
            error = inner
        text = (str(error).strip().splitlines() or [""])[0]
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return f"{type(error).__name__}: {text}"

    def _message(self, error: BaseException, doing: str) -> str:
        cause = self.cause(error)
        if self.path is not None and "database is locked" in cause:
            return self._locked(self.path)
        found = f"the study at {self.shown} could not be {doing}: found {cause}"
        if doing == "opened":
            return (
                f"{found}; expected the path of a new file or of an earlier study, or a database URL such as "
                "postgresql+psycopg://host/database whose driver is installed. Choose another location: a path that "
                "you can write to, or ':memory:' for a study that is not saved."
            )
        return (
            f"{found}; expected that this process can write to it and that no other process changes this trial. Check "
            "free space, permissions and other processes, then run again: earlier records are kept."
        )


@contextmanager
def writing(location: str | Path | None, name: str, wait_s: float, say: locks.Say) -> Iterator[None]:
    """Locks the study `name` at `location` against other tuners on this machine. A database is not locked.

    Raises:
        Busy: another process still writes to it after `wait_s` seconds.
    """
    place = Place.of(location)
    if place.path is None:
        yield
        return
    with locks.held(f"study-{os.path.realpath(place.path)}-{name}", f"the study {place.shown}", wait_s, say):
        yield


def _redacted(url: str) -> str:
    """Returns a database URL without user, password and query values."""
    scheme, _, rest = url.partition("://")
    body, _, query = rest.partition("?")
    if "@" in query:  # ambiguous: a password with a "?", or a value with an "@"
        return f"{scheme}://***"
    shown = f"{scheme}://{'***@' if '@' in body else ''}{body.rpartition('@')[2]}"
    names = [f"{part.partition('=')[0]}=***" if "=" in part else "***" for part in query.split("&") if part]
    return f"{shown}?{'&'.join(names)}" if names else shown


def _secrets(url: str) -> tuple[str, ...]:
    """Returns the parts that `_redacted` hides, as in the URL and as drivers see them, longest first."""
    rest = url.partition("://")[2]
    user, _, tail = rest.rpartition("@")
    values = [part.rpartition("=")[2] for part in f"{rest}&{tail}".partition("?")[2].split("&")]
    parts = [url, user, *user.split(":", 1), *values]
    return tuple(sorted({form for part in parts for form in (part, unquote(part)) if form}, key=len, reverse=True))


def _storage_failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions that a storage raises. Called once one was raised."""
    from optuna.exceptions import OptunaError  # noqa: PLC0415  # see the module's docstring
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    return (
        OptunaError,
        SQLAlchemyError,
        OSError,
        ImportError,  # the driver of a database URL is not installed
        sqlite3.Error,  # a file that another process has locked
        RuntimeError,  # a database of another Optuna version
        ValueError,  # a malformed URL; a trial that another process has finished
        LookupError,  # a study or trial that another process has deleted
        TypeError,  # a damaged distribution
        AttributeError,
    )
