"""Where a study is kept, who can access it, how it is shown without secrets, and what a failure of it means.

Loads neither Optuna nor SQLAlchemy. A journal is JSON: reading it runs no code, whoever wrote it.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from autofit import locks
from autofit.core.errors import AutofitError, StorageError, StudyError, UsageError
from autofit.core.printable import redacted
from autofit.core.units import format_bytes
from autofit.files import head_of, is_mine

DEFAULT_DIRECTORY = ".autofit"
"""Default directory of the study. A repository may contain one."""
MAX_BYTES = 2**28
"""Maximum size of a journal. A trial writes about 7 kB."""
MOST_VALUES = 2**22
"""Maximum number of lists and mappings in a journal. A trial writes about 80. Each takes 60 to 230 bytes when read."""
NETWORK = ("//", "\\\\")
"""Beginnings of a path that leads to another machine. A plan file may be a stranger's, and Windows logs in there."""
_PIECE_BYTES = 2**20
_REFERENCE_BYTES = 2**16
"""Maximum number of bytes that are read of a file with a location."""
_OPERATION, _SQLITE = b'{"op_code":', b"SQLite format 3"
"""Beginning of each line of a journal, and of an SQLite database."""
_SQLITE_URL = "sqlite:///"
_IN_MEMORY = ("", ":memory:", "sqlite://", _SQLITE_URL, f"{_SQLITE_URL}:memory:")
_AWAY = frozenset({"OSError", "DatabaseError", "InterfaceError", "StorageInternalError"})
"""Errors of a storage that does not answer, or refuses: of the system, of any database driver (PEP 249), of Optuna."""


@dataclass(frozen=True, slots=True)
class StudyPlace:
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
        if location == "":
            raise UsageError(
                "the study location is empty, perhaps from an unset variable; expected a path, a storage URL or "
                "':memory:'. Set one, or leave it out."
            )
        if text in _IN_MEMORY:
            return cls("memory")
        if "://" in text and isinstance(location, str):
            if text.startswith(_SQLITE_URL):  # absolute, since the user's code may change the working directory
                text = f"{_SQLITE_URL}{os.path.abspath(text.removeprefix(_SQLITE_URL))}"
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
        """Raises failures of the storage as `StudyError`, and as `StorageError` if it does not answer now."""
        try:
            yield
        except AutofitError:
            raise
        except Exception as error:  # noqa: BLE001  # each driver has its own errors, and a damaged line may cause any
            # Without the cause: tracebacks of database drivers can show the password.
            raise self._error(error, doing) from None

    def _error(self, error: BaseException, doing: str) -> StudyError:
        if type(error).__module__.startswith("optuna."):  # it says less than the error that it was raised for
            error = error.__cause__ or error.__context__ or error
        while (inner := getattr(error, "orig", None) or error.__cause__) is not None:  # the driver's, or the system's
            error = inner
        text = redacted(next(iter(str(error).strip().splitlines()), ""))
        for secret in self.secrets:
            text = text.replace(secret, "***")
        found = f"{type(error).__name__}: {text}"
        if not _AWAY.isdisjoint(each.__name__ for each in type(error).__mro__):
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


def _damaged_line(path: Path) -> int:
    """Returns the number of the first line of a journal that is not an operation of Optuna's; 0 if there is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                json.loads(line)["op_code"]
            except (ValueError, LookupError, TypeError, RecursionError):
                return number
    return 0


@contextmanager
def writing(location: str | Path | None, name: str, wait_s: float, say: locks.Say) -> Iterator[None]:
    """Locks the study `name` at `location` against other tuners on this machine. A database is not locked.

    Raises:
        Busy: another process still writes to it after `wait_s` seconds.
    """
    place = StudyPlace.of(location)
    if place.path is None:
        yield
        return
    with locks.held(f"study-{os.path.realpath(place.path)}-{name}", f"the study {place.shown}", wait_s, say):
        yield


def dereferenced(location: str | None) -> str | None:
    """Returns a location, or what the environment variable (`env:NAME`) or the file (`file:PATH`) that it names holds.

    A URL with a password is then in no command line.

    Raises:
        UsageError: the variable is not set, or the file cannot be read. The message does not show what they contain.
    """
    kind, _, name = (location or "").partition(":")
    if kind not in ("env", "file"):
        return location
    text, what = "", f"the file {name}, which is empty"
    try:
        if kind == "env":
            text, what = os.environ.get(name, ""), f"the environment variable {name}, which is not set or is empty"
        else:
            text = head_of(Path(name).expanduser(), _REFERENCE_BYTES).decode()
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of an unknown user
        what = f"the file {name}, which cannot be read ({getattr(error, 'strerror', None) or error})"
    except ValueError:  # not UTF-8, or a NUL in the path
        what = f"the file {name}, which is not UTF-8 text"
    if not text.strip():
        raise UsageError(f"found {what}; expected a path or a database URL in it.")
    return text.strip()


def make_directory(directory: Path) -> None:
    """Creates a directory that only its owner can access, or checks an existing one.

    Raises:
        StudyError: everyone could write to it, or the default directory is a symbolic link or another user's.
    """
    missing = [step for step in (directory, *directory.parents) if not step.exists() and not step.is_symlink()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    if directory.name == DEFAULT_DIRECTORY and directory.is_symlink():
        found = f"a symbolic link to {directory.readlink()}"
    elif directory.name == DEFAULT_DIRECTORY and not is_mine(directory.stat()):
        found = "a directory of another user"
    elif directory.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        found = "a directory that everyone can write to"  # with the sticky bit, as in /tmp, they cannot rename files
    else:
        return
    raise StudyError(
        f"no study can be stored in {directory}: found {found}; expected a directory that others cannot write to. "
        "Remove it or change its mode (chmod 700), or choose another with --study."
    )


def check_file(path: Path) -> None:
    """Checks that a path is a journal, or an empty file.

    Raises:
        StudyError: it is something else, or everyone could have written it.
    """
    if found := _problem(path):
        raise StudyError(
            f"no study can be kept at {path}: found {found}; expected no file, or a journal that Optuna wrote and that "
            "others cannot write to. Nothing was changed. Move it away, or choose another path."
        )


def _problem(path: Path) -> str:
    """Returns why an existing file cannot be used as a study; "" if it can."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory"}
        return kinds.get(stat.S_IFMT(status.st_mode), "a special file")
    if status.st_mode & stat.S_IWOTH:
        return "a file that everyone can write to"
    head = head_of(path, len(_SQLITE))
    if head == _SQLITE:
        return f"an SQLite database, whose URL is sqlite:///{path}"
    if not _OPERATION.startswith(head[: len(_OPERATION)]):
        return "a file of another kind"
    size, most = status.st_size, MAX_BYTES
    if size > most:
        return f"a file of {format_bytes(size)}, above {format_bytes(most)}"
    return f"a file of more than {MOST_VALUES:,} values" if _value_count(path) > MOST_VALUES else ""


def _value_count(path: Path) -> int:
    """Returns the number of lists and mappings in a journal, of which nothing is read whole."""
    with path.open("rb") as file:
        return sum(piece.count(b"[") + piece.count(b"{") for piece in iter(partial(file.read, _PIECE_BYTES), b""))


def is_storage(path: Path) -> bool:
    """Returns whether a file is a journal or an SQLite database.

    Raises:
        OSError: it cannot be read.
    """
    return head_of(path, len(_SQLITE)).startswith((_OPERATION, _SQLITE))
