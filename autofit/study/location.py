"""Place: where a study is kept, how that is shown without secrets, and what a failure of it means.

A location may be in an environment variable or a file, so that a URL with a password is in no command line.

Loads neither Optuna nor SQLAlchemy.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from autofit import locks
from autofit.core.errors import AutofitError, StorageError, StudyError, UsageError
from autofit.core.redaction import redacted
from autofit.files import head_of

_SQLITE = "sqlite:///"
_IN_MEMORY = ("", ":memory:", "sqlite://", _SQLITE, f"{_SQLITE}:memory:")
_AWAY = frozenset({"OSError", "DatabaseError", "InterfaceError", "StorageInternalError"})
"""Errors of a storage that does not answer, or refuses: of the system, of any database driver (PEP 249), of Optuna."""


_REFERENCE_BYTES = 2**16
"""Maximum number of bytes that are read of a file with a location."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a study is kept.

    Attributes:
        shown: the place without secrets.
        path: path of a journal file.
        url: storage URL of Optuna's. Without path and URL, the study is in memory.
        secrets: the password in the URL, as it is written there and as drivers see it.
    """

    shown: str
    path: Path | None = None
    url: str | None = None
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, location: str | Path | None) -> Self:
        """Parses the user's location: None or ":memory:", a path, or a storage URL.

        Raises:
            UsageError: the location is empty, or is in the home of an unknown user.
        """
        text = "" if location is None else str(location)
        if isinstance(location, str) and not text:
            raise UsageError(
                "the study location is empty, perhaps from an unset variable; expected a path, a storage URL or "
                "':memory:'. Set one, or leave it out."
            )
        if text in _IN_MEMORY:
            return cls("memory")
        if "://" in text and isinstance(location, str):
            if text.startswith(_SQLITE):  # absolute, since the user's code may change the working directory
                text = f"{_SQLITE}{os.path.abspath(text.removeprefix(_SQLITE))}"
            password = text.partition("://")[2].rpartition("@")[0].partition(":")[2]
            return cls(redacted(text), url=text, secrets=tuple({password, unquote(password)} - {""}))
        try:
            path = Path(text).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(
                f"the study {text!r} cannot be found: {error}; expected a path. Write the full path."
            ) from None
        return cls(str(path), path=path)

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Raises failures of the storage as `StudyError`, and as `StorageError` if it does not answer now.

        Args:
            doing: "opened", "read" or "written".
        """
        try:
            yield
        except AutofitError:
            raise
        except Exception as error:  # noqa: BLE001  # each driver has its own errors, and a damaged line may cause any
            # Without the cause: tracebacks of database drivers can show the password.
            raise self._error(error, doing) from None

    def _error(self, error: Exception, doing: str) -> StudyError:
        cause = _cause(error)
        text = redacted(next(iter(str(cause).strip().splitlines()), ""))
        for secret in self.secrets:
            text = text.replace(secret, "***")
        found = f"{type(cause).__name__}: {text}"
        if not _AWAY.isdisjoint(each.__name__ for each in type(cause).__mro__):
            return StorageError(
                f"the study at {self.shown} could not be {doing}: found {found}; expected a storage that answers and "
                "that this user can read and write. Check the path or URL, permissions and free space, then run "
                "again: earlier records are kept."
            )
        if self.path is not None and (line := _damaged_line(self.path)):
            found = f"a damaged line {line}"
        return StudyError(
            f"the study at {self.shown} could not be {doing}: found {found}; expected a journal that Optuna can read, "
            "or a storage URL such as postgresql+psycopg://host/database whose driver is installed. Nothing was "
            "changed. Restore the file from a backup, or choose another location."
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


def dereferenced(location: str | None) -> str | None:
    """Returns a location, or what the environment variable (`env:NAME`) or the file (`file:PATH`) that it names holds.

    Raises:
        UsageError: the variable is not set, or the file cannot be read. The message does not show what they contain.
    """
    kind, _, name = (location or "").partition(":")
    if kind not in ("env", "file"):
        return location
    text, what = in_variable(name) if kind == "env" else in_file(Path(name).expanduser())
    if not text:
        raise UsageError(f"found {what}; expected a path or a database URL in it.")
    return text


def in_variable(name: str) -> tuple[str, str]:
    """Returns the value of an environment variable, and what was found if it is empty."""
    return os.environ.get(name, "").strip(), f"the environment variable {name}, which is not set or is empty"


def in_file(path: Path) -> tuple[str, str]:
    """Returns the text of a file, and what was found if there is none."""
    try:
        return head_of(path, _REFERENCE_BYTES).decode().strip(), f"the file {path}, which is empty"
    except OSError as error:
        return "", f"the file {path}, which cannot be read ({error.strerror})"
    except ValueError:  # not UTF-8, or a NUL in the path
        return "", f"the file {path}, which is not UTF-8 text"


def _cause(error: BaseException) -> BaseException:
    """Returns the failure behind an error of a storage: that of the driver or of the operating system."""
    if type(error).__module__.startswith("optuna."):  # it says less than the error that it was raised for
        error = error.__cause__ or error.__context__ or error
    while (inner := getattr(error, "orig", None) or error.__cause__) is not None:
        error = inner
    return error


def _damaged_line(path: Path) -> int:
    """Returns the number of the first line of a journal that is not an operation of Optuna's; 0 if there is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                json.loads(line)["op_code"]
            except (ValueError, LookupError, TypeError, RecursionError):
                return number
    return 0
