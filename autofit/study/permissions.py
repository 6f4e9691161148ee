"""Permissions: a study's file and directory belong to this user alone, and the file is a study."""

import os
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from autofit.core.errors import StudyError

DEFAULT_DIRECTORY = ".autofit"
"""Directory of the study where the user names none. A repository may contain one."""


def make_directory(directory: Path) -> None:
    """Makes a directory for its owner alone, or checks the one that is there.

    Raises:
        StudyError: somebody else could put files there, or it leads elsewhere.
    """
    missing = [step for step in (directory, *directory.parents) if not step.exists() and not step.is_symlink()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    found = _objection_to_directory(directory)
    if found is not None:
        raise StudyError(
            f"no study can be kept in {directory}: found {found}; expected a directory of your own that others cannot "
            "write to. Remove it or change its owner and mode (chmod 700), or choose another place with --study."
        )
    if directory.name == DEFAULT_DIRECTORY and directory.stat().st_mode & 0o077 and _mine(directory.stat()):
        directory.chmod(0o700)


def make_file(path: Path, wait_s: float) -> None:
    """Makes an empty file for its owner alone, or checks the one that is there; Optuna's own would be 0644.

    Args:
        path: of the study.
        wait_s: how long another process may keep it locked.

    Raises:
        StudyError: the path holds something else, or somebody else could have written it.
        sqlite3.OperationalError: another process keeps it locked.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        found = _objection(path, wait_s)
        if found is not None:
            raise StudyError(
                f"no study can be kept at {path}: found {found}; expected no file, or a study that autofit made and "
                "that is yours alone. Move it away, or choose another path."
            ) from None
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _mine(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid()


def _objection_to_directory(directory: Path) -> str | None:
    """Returns why files in a directory are not this user's own, or None."""
    if directory.name == DEFAULT_DIRECTORY and directory.is_symlink():
        return f"a symbolic link to {directory.readlink()}"
    found = directory.stat()
    if not _mine(found) and found.st_uid != 0:
        return f"a directory of another user (number {found.st_uid})"
    # Where the sticky bit is set, as in /tmp, nobody removes or renames what is another user's.
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "a directory that everybody can write to"
    return None


def _objection(path: Path, wait_s: float) -> str | None:
    """Returns what is wrong with an existing file as a study, or None."""
    found = path.lstat()
    if (kind := _not_a_file(found.st_mode)) is not None:
        return kind
    if not _mine(found):
        return f"a file of another user (number {found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return "a file that everybody can write to"
    if not os.access(path, os.R_OK | os.W_OK):
        return "a file that this user may not read and write"
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        return None  # its maker was killed before Optuna wrote the tables
    return "a file that is not an SQLite database" if head != b"SQLite format 3\0" else _foreign_tables(path, wait_s)


def _not_a_file(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a directory"
    return None if stat.S_ISREG(mode) else "a special file"


def _foreign_tables(path: Path, wait_s: float) -> str | None:
    # Writable, so that SQLite can roll back what a killed process left half written.
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=wait_s)
    try:
        tables = {row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")}
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise
        return f"a damaged SQLite database ({error})"
    finally:
        connection.close()
    return None if not tables or "studies" in tables else "an SQLite database of another program"
