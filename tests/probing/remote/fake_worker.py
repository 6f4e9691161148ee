"""A worker without torch, under the real supervisor: it starts in no time and does what a test tells it to."""

import os
import stat
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

PYTHON = sys.executable
_SCRIPT = """\
#!{python}
import json, os, signal, socket, subprocess, sys, threading, time
from autofit.probing.remote import fork_server, supervisor

def work(read, write):
    environment, requests = dict(os.environ), os.fdopen(read)

    def say(kind, **content):
        os.write(write, (json.dumps(dict(kind=kind, **content)) + "\\n").encode())

    for line in requests:
        request = json.loads(line)
{behaviour}

given = dict(zip(sys.argv[3::2], map(int, sys.argv[4::2])))
if "--nursery" in given:
    fork_server.end_with(given["--life"])
{nursery}
    fork_server.ForkServer(socket.socket(fileno=given["--nursery"]), given["--life"], work, {{}}).serve()
else:
    supervisor.keep(given["--life"], given["--read"], given["--write"])
    work(given["--read"], given["--write"])
"""


def install(folder: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch, nursery: str = "") -> None:
    """Makes every `Child` started from now on run `behaviour` for each `request`; it may call `say(kind, ...)`.

    A nursery runs the code `nursery` when it starts.
    """
    path = folder / "fake_worker"
    behaviour, nursery = indent(dedent(behaviour), " " * 8), indent(dedent(nursery), " " * 4)
    new = folder / "fake_worker.new"  # renamed at once, as an earlier child may still be reading it
    new.write_text(_SCRIPT.format(python=PYTHON, behaviour=behaviour, nursery=nursery))
    new.chmod(new.stat().st_mode | stat.S_IXUSR)
    new.rename(path)
    monkeypatch.setattr(sys, "executable", str(path))


def session(leader: int) -> list[int]:
    """Returns the processes of a session that are not mere zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has ended meanwhile
            continue
        if int(sid) == leader and state != "Z":
            found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
