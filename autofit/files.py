"""Files that are written completely or not at all, and the beginning of one that may be anything."""

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autofit.core.errors import UsageError

NEW_MODE = 0o644
"""Permissions of a new file, less the umask: plans and exports are made to be shared and versioned."""


def followed(path: Path) -> Path:
    """Returns the file or directory that a path leads to: links are followed, so that they are kept.

    Raises:
        OSError: the links form a loop.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def replaceable(
    path: str | Path,
    what: str,
    is_earlier: Callable[[Path], bool],
    *,
    force: bool,
    error: type[UsageError] = UsageError,
) -> Path:
    """Returns where a file is written, with links followed. Without `force`, only an earlier file is replaced.

    Raises:
        UsageError: something else than `what` is there, such as "an autofit plan".
        OSError: what is there cannot be read, or the links form a loop.
    """
    target = followed(Path(path))
    if target.exists() and not (target.is_file() and (force or is_earlier(target))):
        instead = ", move that file away, or replace it with --force" if target.is_file() else ""
        raise error(
            f"{path} was not written: found {'a file' if instead else 'something'} there that is not {what}; expected "
            f"nothing, or an earlier one. Choose another path{instead}."
        )
    return target


def unwritable(path: str | Path, error: OSError, kind: type[UsageError] = UsageError) -> UsageError:
    """Returns the error of a file that cannot be written."""
    found = error.strerror or error
    return kind(
        f"{path} was not written: {found}; expected a directory that exists and has space. Choose another path."
    )


def head_of(path: Path, most_bytes: int) -> bytes:
    """Returns the first bytes of a regular file. A device or a pipe may never end, or never begin.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    at_once = getattr(os, "O_NONBLOCK", 0)  # opens even a pipe to which nobody writes
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:  # Path.open has no opener
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a device or a pipe", str(path))
        return file.read(most_bytes)


def write_atomically(target: Path, data: bytes) -> None:
    """Replaces `target` atomically: readers see the old file or the new one.

    A replaced file keeps its permissions, and its owner if this process may set it.

    Raises:
        OSError: the directory cannot be written or is full. The old file is unchanged.
    """
    earlier = target.stat() if target.exists() else None
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(4)}")
    # Other users cannot open the draft until it has the permissions of the file that it replaces.
    mode = NEW_MODE if earlier is None else 0o600
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if earlier is not None:
                if hasattr(os, "chown") and (earlier.st_uid, earlier.st_gid) != (os.geteuid(), os.getegid()):
                    with suppress(OSError):
                        os.chown(draft, earlier.st_uid, earlier.st_gid)
                draft.chmod(stat.S_IMODE(earlier.st_mode) & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:  # also on Ctrl-C, remove the draft
        with suppress(OSError):
            draft.unlink()
        raise


def is_mine(found: os.stat_result) -> bool:
    """Returns whether a file belongs to this user or to the administrator, as far as the platform knows owners."""
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)
