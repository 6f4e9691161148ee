"""Permissions: a study's file is created for its owner alone, is not a link, and others cannot have written it.

A journal is JSON: whoever wrote it, reading it runs no code of theirs.
"""

import os
import stat
from pathlib import Path

from autofit.core.errors import StudyError
from autofit.core.units import format_bytes
from autofit.files import head_of

DEFAULT_DIRECTORY = ".autofit"
"""Default directory of the study. A repository may contain one."""
_BEGINNING = b'{"op_code":'
"""Beginning of each line of a journal of Optuna's."""
_SQLITE = b"SQLite format 3"
MAX_BYTES = 2**28
"""Maximum size of a journal. A trial writes about 7 kB."""


def make_directory(directory: Path) -> None:
    """Creates a directory that only its owner can access, or checks an existing one.

    Raises:
        StudyError: everyone could write to it, or the default directory is a symbolic link.
    """
    missing = [step for step in (directory, *directory.parents) if not step.exists() and not step.is_symlink()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    if directory.name == DEFAULT_DIRECTORY and directory.is_symlink():
        found = f"a symbolic link to {directory.readlink()}"
    elif directory.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        found = "a directory that everyone can write to"  # with the sticky bit, as in /tmp, they cannot rename files
    else:
        return
    raise StudyError(
        f"no study can be stored in {directory}: found {found}; expected a directory that others cannot write to. "
        "Remove it or change its mode (chmod 700), or choose another with --study."
    )


def make_file(path: Path) -> None:
    """Creates an empty file that only its owner can access, or checks an existing one.

    Raises:
        StudyError: the path is not a journal, or everyone could have written it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except FileExistsError:
        check_file(path)


def check_file(path: Path) -> None:
    """Checks that a path is a journal, or an empty file.

    Raises:
        StudyError: it is something else, or everyone could have written it.
    """
    found = _problem(path)
    if found:
        raise StudyError(
            f"no study can be kept at {path}: found {found}; expected no file, or a journal that Optuna wrote and that "
            "others cannot write to. Nothing was changed. Move it away, or choose another path."
        )


def _problem(path: Path) -> str:
    """Returns why an existing file cannot be used as a study, or ""."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if not stat.S_ISREG(mode):
        return "a directory" if stat.S_ISDIR(mode) else "a special file"
    if mode & stat.S_IWOTH:
        return "a file that everyone can write to"
    head = _head(path)
    if head == _SQLITE:
        return f"an SQLite database, whose URL is sqlite:///{path}"
    if not _BEGINNING.startswith(head[: len(_BEGINNING)]):
        return "a file of another kind"
    size = path.stat().st_size
    return f"a file of {format_bytes(size)}, above {format_bytes(MAX_BYTES)}" if size > MAX_BYTES else ""


def is_storage(path: Path) -> bool:
    """Returns whether a file is a journal or an SQLite database.

    Raises:
        OSError: it cannot be read.
    """
    head = _head(path)
    return head.startswith(_BEGINNING) or head == _SQLITE


def _head(path: Path) -> bytes:
    return head_of(path, len(_SQLITE))
