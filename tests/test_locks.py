"""Locks: who holds what, for how long others wait, and what is nested use."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from autofit import locks
from autofit.core.errors import Busy, UsageError

HOLD = (
    "import sys; from autofit import locks\n"
    "with locks.held(sys.argv[1], 'the thing', 5.0): print('held', flush=True); sys.stdin.readline()"
)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locks.DIRECTORY_VARIABLE, str(tmp_path / "locks"))


def holding(key: str = "cpu") -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


@pytest.mark.fault("F55")
def test_f55_the_second_is_told_who_holds_it_and_gives_up_in_time() -> None:
    said: list[str] = []
    with holding() as child:
        began = time.monotonic()
        with pytest.raises(Busy) as caught, locks.held("cpu", "the CPU", 0.3, said.append):
            pytest.fail("held by two")
        assert 0.2 < time.monotonic() - began < 5
        assert f"process {child.pid} (-c" in str(caught.value)
        assert " since 2" in str(caught.value)
        assert "expected one tuner at a time" in str(caught.value)
        assert len(said) == 1
        assert said[0].startswith("waiting up to 300 ms for the CPU, in use by process ")
        with locks.held("cuda-1", "another device", 0.0):
            pass
        child.communicate("\n")


@pytest.mark.fault("F55")
def test_f55_a_lock_is_free_after_kill_9_and_after_its_holder_ends() -> None:
    for kill in (True, False):
        with holding() as child:
            if kill:
                child.kill()
            else:
                child.communicate("\n")
        with locks.held("cpu", "the CPU", 5.0):
            pass


def test_the_second_goes_on_when_the_first_ends() -> None:
    with holding() as child:
        assert child.stdin is not None
        threading.Timer(0.5, child.stdin.close).start()
        with locks.held("cpu", "the CPU", 30.0):
            pass


def test_nested_use_in_a_thread_and_in_a_child_is_no_second_use() -> None:
    with locks.held("cpu", "the CPU", 0.0):
        with locks.held("cpu", "the CPU", 0.0):
            pass
        with holding() as child:  # a process that this one started
            child.communicate("\n")
        with pytest.raises(Busy):
            _in_thread()
    _in_thread()


def _in_thread() -> None:
    found: list[BaseException | None] = []

    def work() -> None:
        try:
            with locks.held("cpu", "the CPU", 0.0):
                found.append(None)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if found[0] is not None:
        raise found[0]


def test_without_flock_it_is_said_once_and_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "_reported_unlockable", set())
    said: list[str] = []
    for _ in range(2):
        with locks.held("cpu", "the CPU", 0.0, said.append):
            pass
    assert said == ["the CPU cannot be locked here (no flock on this platform): do not run two tuners on it at once"]


@pytest.mark.fault("F60")
def test_f60_a_directory_of_locks_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    path = locks.directory()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o777)
    with pytest.raises(UsageError, match="writable by others; expected a directory that you own with mode 700"):
        locks.directory()
    path.chmod(0o700)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"found that .* is a link"):
        locks.directory()


def test_without_the_variable_every_session_of_a_user_finds_the_same_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(locks.DIRECTORY_VARIABLE)
    assert str(os.getuid()) in locks.directory().name


def test_values_of_options_are_not_written_into_a_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/autofit", "postgresql://bob:lion@h/n", "--study=secret", "more"])
    with locks.held("cpu", "the CPU", 0.0):
        (text,) = [file.read_text() for file in (tmp_path / "locks").iterdir()]
    assert '"command": "autofit --study"' in text
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "locks").iterdir()] == [0o600]


def test_patience_is_half_of_the_time() -> None:
    assert locks.patience_s(60.0) == 30.0
    assert locks.patience_s(None) == locks.PATIENCE_S


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel tells who holds a lock on Linux only")
def test_who_holds_a_lock_of_another_kind_is_known_from_the_kernel(tmp_path: Path) -> None:
    code = (
        "import fcntl, os, sys; d = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(d, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert locks.holder_of(tmp_path).startswith(f"process {child.pid} (")
        child.communicate("\n")
    assert locks.holder_of(tmp_path) == "another process"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock() -> None:
    """A pool of the user's data set kept the device locked after the first `tune` of a script."""
    read, write = os.pipe()
    with locks.held("cpu", "the device", 0.0):
        child = os.fork()
        if child == 0:  # pragma: no cover
            os.read(read, 1)
            os._exit(0)
    try:
        other = holding()
        with other:
            other.kill()
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_what_a_holder_has_written_is_gone_with_its_lock(tmp_path: Path) -> None:
    """A process started later took it for its parent's, and itself for nested."""
    with locks.held("cpu", "the device", 0.0):
        (path,) = (tmp_path / "locks").iterdir()
        assert path.read_text(encoding="utf-8")
    assert path.read_bytes() == b""


def test_a_directory_that_cannot_be_made_locks_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(locks.DIRECTORY_VARIABLE, str(tmp_path / "file" / "locks"))
    said: list[str] = []
    with locks.held("a device of this test", "the device", 0.0, said.append):
        pass
    assert len(said) == 1
    assert "cannot be locked here" in said[0]
