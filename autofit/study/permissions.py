"""Permissions: ensures that only this user can access a study's file and directory, and that the file is a study."""

import os
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from autofit.core.errors import StudyError

DEFAULT_DIRECTORY = ".autofit"
"""Default directory of the study. A repository may contain one."""


def make_directory(directory: Path) -> None:
    """Creates a directory that only its owner can access, or checks an existing one.

    Raises:
        StudyError: another user could write to it, or it is a symbolic link.
    """
    missing = [step for step in (directory, *directory.parents) if not step.exists() and not step.is_symlink()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    found = _directory_problem(directory)
    if found is not None:
        raise StudyError(
            f"no study can be stored in {directory}: found {found}; expected a directory that you own and that others "
            "cannot write to. Remove it or change its owner and mode (chmod 700), or choose another with --study."
        )
    if directory.name == DEFAULT_DIRECTORY and directory.stat().st_mode & 0o077 and _mine(directory.stat()):
        directory.chmod(0o700)


def make_file(path: Path, wait_s: float) -> None:
    """Creates an empty file that only its owner can access, or checks an existing one. Optuna's would have mode 0644.

    Args:
        path: path of the study.
        wait_s: maximum time to wait for a lock held by another process.

    Raises:
        StudyError: the path is not a study, or another user could have written it.
        sqlite3.OperationalError: another process holds the lock.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        found = _file_problem(path, wait_s)
        if found is not None:
            raise StudyError(
                f"no study can be stored at {path}: found {found}; expected no file, or a study that autofit made and "
                "that only you can access. Move the file, or choose another path."
            ) from None
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _mine(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid()


def _directory_problem(directory: Path) -> str | None:
    """Returns why files in a directory may be of another user, or None."""
    if directory.name == DEFAULT_DIRECTORY and directory.is_symlink():
        return f"a symbolic link to {directory.readlink()}"
    found = directory.stat()
    if not _mine(found) and found.st_uid != 0:
        return f"a directory of another user (number {found.st_uid})"
    # With the sticky bit, as in /tmp, users cannot remove or rename files of others.
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return "a directory that everyone can write to"
    return None


def _file_problem(path: Path, wait_s: float) -> str | None:
    """Returns why an existing file cannot be used as a study, or None."""
    found = path.lstat()
    if (kind := _not_a_file(found.st_mode)) is not None:
        return kind
    if not _mine(found):
        return f"a file of another user (number {found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return "a file that everyone can write to"
    if not os.access(path, os.R_OK | os.W_OK):
        return "a file that this user may not read and write"
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        return None  # the process that created it was killed before Optuna wrote the tables
    return "a file that is not an SQLite database" if head != b"SQLite format 3\0" else _foreign_tables(path, wait_s)


def _not_a_file(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a directory"
    return None if stat.S_ISREG(mode) else "a special file"


def _foreign_tables(path: Path, wait_s: float) -> str | None:
    # Writable, so that SQLite can roll back an incomplete transaction of a killed process.
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
