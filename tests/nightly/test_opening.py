"""Opening a job: in the folder of the jobs file, with the device locked, and closed whatever happens."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from autofit import locks
from autofit.core.budget import Clock
from autofit.core.errors import Busy
from autofit.nightly import opening
from autofit.nightly.job import FOLDER, Job
from autofit.nightly.opening import opened
from autofit.probing.remote.bench import Target


class FakeRemote:
    """Stands in for the child process: claims a device as a child does, and remembers what it was given."""

    made: Any = None

    def __init__(self, target: Target, **given: Any) -> None:
        type(self).made = self
        self.target, self.given, self.folder, self.ended = target, given, Path.cwd(), ""
        claim: Callable[[str, str], None] = given["claim"]
        claim("device-of-this-test", "the GPU")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended = "killed" if error is not None else "closed"


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> type[FakeRemote]:
    kind = type("Remote", (FakeRemote,), {})
    monkeypatch.setattr(opening, "RemoteBench", kind)
    return kind


def job(folder: Path) -> Job:
    data = {"name": "gpt", "workload": "train.py:make", "plan": "gpt.yaml", "args": {"depth": 4}}
    return Job.model_validate(data, context={FOLDER: folder})


@contextmanager
def other_holder(key: str, folder: Path) -> Iterator[int]:
    """Has another process hold a lock."""
    pid = os.fork()
    if pid == 0:
        with locks.held(key, "it", 0.0):
            (folder / "held").touch()
            signal.pause()
    try:
        while not (folder / "held").exists():
            pass
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_job_is_opened_in_the_folder_of_the_jobs_file(remote: Any, tmp_path: Path) -> None:
    before, clock = Path.cwd(), Clock()
    with opened(job(tmp_path), clock, lambda text: None, tmp_path) as bench:
        given: Any = bench
        assert given is remote.made
        assert Path.cwd() == tmp_path  # a child that replaces the first one starts here too
    assert Path.cwd() == before
    made = remote.made
    assert (made.folder, made.ended) == (tmp_path, "closed")
    assert made.target.name == f"{tmp_path}/train.py:make"
    assert made.target.arguments == {"depth": 4}
    assert made.given["clock"] is clock
    assert made.given["log"] == tmp_path / ".autofit" / "gpt.log"


def test_a_failure_inside_ends_the_child_and_releases_the_device(remote: Any, tmp_path: Path) -> None:
    before = Path.cwd()
    with pytest.raises(ValueError, match="boom"), opened(job(tmp_path), Clock(), lambda text: None, tmp_path):
        raise ValueError("boom")
    assert remote.made.ended == "killed"
    assert Path.cwd() == before
    with locks.held("device-of-this-test", "the GPU", 0.0):
        pass


def test_a_busy_device_is_waited_for_within_half_of_the_time(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        other_holder("device-of-this-test", tmp_path) as pid,
        pytest.raises(Busy, match=rf"the GPU is in use: found process {pid} "),
        opened(job(tmp_path), Clock(limit_s=0.6), said.append, tmp_path),
    ):
        raise AssertionError("the device is held by another process")
    assert re.fullmatch(r"waiting up to \d+ ms for the GPU, in use by process .*", said[0])
