"""A database that stops answering: the caller gets an error, and the next request connects anew."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.core.errors import StorageError
from autofit.study import silence
from autofit.study.location import Place
from autofit.study.optuna_storage import connected
from autofit.study.tables import opened
from tests import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as started:
        yield started


def processes_of(server: postgres.Server) -> list[int]:
    """The processes of the server: one for each connection too."""
    found = []
    first = int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if first in (int(name), parent):
            found.append(int(name))
    return found


def test_a_server_that_is_stopped_in_a_request_is_given_up_and_used_again_later(
    server: postgres.Server,
) -> None:
    place = Place.of(server.url("silence"))
    with connected(place) as storage:
        assert storage.get_all_studies() == []
        stopped = processes_of(server)
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(StorageError), place.guarded("read", seconds=1.0):
                storage.get_all_studies()
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)
        assert time.monotonic() - began < 30
        with place.guarded("read"):
            assert storage.get_all_studies() == []
    with opened(place) as tables:
        assert "studies" in tables.names


def test_a_request_in_time_is_not_disturbed() -> None:
    with silence.limited(30.0):
        pass
