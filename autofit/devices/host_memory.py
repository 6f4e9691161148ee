"""Main memory of the machine, as Linux and control groups report it, for the CPU and integrated chips."""

import os
from contextlib import suppress
from pathlib import Path


def capacity() -> int:
    """Returns the bytes of main memory, or the limit of the control group if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, _cgroup("memory.max") or total)


def available() -> int | None:
    """Returns the bytes available on the system, within the control group's limit; None if unknown.

    The page cache counts as available, because the system frees it on demand.
    """
    found = kib_line(Path("/proc/meminfo"), "MemAvailable")
    limit = _cgroup("memory.max")
    if found is None or limit is None:
        return found
    stat = dict(line.split(maxsplit=1) for line in (_cgroup_text("memory.stat") or "").splitlines() if " " in line)
    reclaimable = stat.get("inactive_file", "")  # file memory that is reclaimed first
    used = (_cgroup("memory.current") or 0) - (int(reclaimable) if reclaimable.isdigit() else 0)
    return max(min(found, limit - used), 0)


def status_bytes(key: str) -> int | None:
    """Returns a line of this process's status, such as "VmRSS", in bytes; None if there is no such line."""
    return kib_line(Path("/proc/self/status"), key)


def kib_line(path: Path, key: str) -> int | None:
    """Returns the bytes on the line "key: n kB" of a file; None if there is no such file or line."""
    found = text_of(path, key)
    return None if found is None else int(found.split()[0]) * 1024


def text_of(path: Path, key: str) -> str | None:
    """Returns what follows "key:" on a line of a file; None if there is no such file (not Linux) or line."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, text = line.partition(":")
            if name.rstrip() == key:
                return text.strip()
    return None


def _cgroup(name: str) -> int | None:
    text = _cgroup_text(name)
    return int(text) if text is not None and text.isdigit() else None


def _cgroup_text(name: str) -> str | None:
    """Returns the text of a file of this process's version 2 control group; None if there is none."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rsplit("::", 1)[-1].lstrip("/")
        return (Path("/sys/fs/cgroup") / group / name).read_text().strip()
    except OSError:
        return None
