"""Notes what a process opens, writes, connects to and starts. Copied as `sitecustomize.py` for each Python process."""

import json
import os
import sys
import threading
from typing import Any

_TRACE = os.environ.get("AUTOFIT_TEST_TRACE", "")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "shutil.rmtree",
    "sqlite3.connect",
}
_STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"}
_LOADS = {"pickle.find_class", "marshal.loads", "ctypes.dlopen"}
_busy = threading.local()


def _seen(event: str, given: Any) -> tuple[str, str] | None:
    """Returns the kind of an event and what it is about, or None."""
    if event == "open" and isinstance(given[0], str | bytes):
        return ("write" if (given[2] or 0) & _WRITES else "read"), os.path.abspath(os.fsdecode(given[0]))
    if event in _PATHS and isinstance(given[0], str | bytes):
        names = [os.path.abspath(os.fsdecode(each)) for each in given[:2] if isinstance(each, str | bytes)]
        return "write", names[-1] if event in ("os.rename", "os.link", "os.symlink") else names[0]
    if event == "socket.connect":
        return "connect", str(given[1])
    if event in _STARTS:
        return "start", " ".join(map(str, given[1])) if event == "subprocess.Popen" else str(given)
    return ("load", f"{event} {given}") if event in _LOADS and event != "marshal.loads" else None


def _hook(event: str, given: Any) -> None:
    if getattr(_busy, "now", False) or event.startswith(("sys._getframe", "object.__", "compile", "exec", "import")):
        return
    _busy.now = True
    try:
        found = _seen(event, given)
        if found is not None:
            descriptor = os.open(_TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, (json.dumps([os.environ.get("AUTOFIT_TEST_CASE", ""), *found]) + "\n").encode())
            os.close(descriptor)
    finally:
        _busy.now = False


if _TRACE:
    sys.addaudithook(_hook)
