"""A PostgreSQL server that the tests start: Debian's binaries, in a folder of its own, on a socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest

LIMIT_S = 60
DEBIAN = Path("/usr/lib/postgresql")


def missing() -> str:
    """Returns what a server needs and is not here; "" if nothing is missing."""
    if find_spec("psycopg") is None:
        return "needs the package psycopg"
    if _binary("initdb") is None or _binary("pg_ctl") is None:
        return "needs a PostgreSQL server: initdb and pg_ctl"
    return ""


def _binary(name: str) -> str | None:
    """Returns the path of a program of PostgreSQL, which Debian does not put on PATH."""
    found = sorted(DEBIAN.glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else None)


@dataclass(frozen=True)
class Server:
    """A server that runs.

    Attributes:
        folder: has its data and its socket.
    """

    folder: Path

    def url(self, database: str) -> str:
        """Makes a database, and returns its URL."""
        import psycopg  # noqa: PLC0415  # where it is not installed, nothing here is called

        where = f"host={self.folder} user=autofit dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(f'create database "{database}"'.encode())
        return f"postgresql+psycopg://autofit@/{database}?host={quote(str(self.folder), safe='')}"

    def control(self, *words: str) -> None:
        """Runs pg_ctl on this server, as its user."""
        run("pg_ctl", "-D", str(self.folder / "data"), *words)


def run(program: str, *words: str) -> None:
    """Runs a program of PostgreSQL, which refuses to be run by root."""
    path = _binary(program)
    assert path is not None
    user = {"user": owner(), "group": "nogroup", "extra_groups": ()} if os.geteuid() == 0 else {}
    subprocess.run([path, *words], check=True, capture_output=True, timeout=LIMIT_S, cwd="/", **user)  # type: ignore[call-overload]


def owner() -> str:
    """Returns the name of a user that the server can run as."""
    return "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


@contextmanager
def server() -> Iterator[Server]:
    """Starts a server that listens on a socket alone, and ends it."""
    folder = Path(tempfile.mkdtemp(prefix="autofit-pg-", dir="/tmp"))  # the path of a socket is short
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, owner())
        run("initdb", "-D", str(folder / "data"), "-U", "autofit", "-A", "trust", "-N")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        started = Server(folder)
        started.control("-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield started
        finally:
            started.control("-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Gives a PostgreSQL server; skips the test, with the reason, where there is none."""
    if why := missing():
        pytest.skip(why)
    with server() as started:
        yield started
