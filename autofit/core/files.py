"""Files that are written whole or not at all."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

NEW_MODE = 0o644
"""Permissions of a new file, less the umask: plans and exports are made to be shared and versioned."""


def write_atomically(target: Path, data: bytes) -> None:
    """Replaces `target` in one step: whoever reads it sees the old file or the new one.

    A file that is replaced keeps its permissions, and its owner where this process may set one.

    Raises:
        OSError: the directory cannot be written, or is full. The old file is as it was.
    """
    earlier = target.stat() if target.exists() else None
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(4)}")
    # Nobody else can open the draft before it has the permissions of the file that it replaces.
    mode = NEW_MODE if earlier is None else 0o600
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if earlier is not None:
                _take_over(draft, earlier)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:  # Ctrl-C too leaves no draft behind
        with suppress(OSError):
            draft.unlink()
        raise


def _take_over(draft: Path, earlier: os.stat_result) -> None:
    """Gives `draft` the owner and the permissions of an earlier file."""
    if hasattr(os, "chown") and (earlier.st_uid, earlier.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(OSError):
            os.chown(draft, earlier.st_uid, earlier.st_gid)
    draft.chmod(stat.S_IMODE(earlier.st_mode) & 0o777)
