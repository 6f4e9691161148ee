"""A file is written whole or not at all, and keeps its permissions."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.errors import AutofitError
from autofit.files import followed, head_of, write_atomically
from autofit.nightly.jobs import read_jobs
from autofit.reports import sources
from autofit.study.location import dereferenced


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "read",
    [planfile.load, planfile.check_replaceable, read_jobs, sources.of_name, lambda p: dereferenced(f"file:{p}")],
)
def test_a_pipe_or_a_device_is_not_waited_for(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(AutofitError) as caught:
            read(path)
        assert caught.value.exit_code == 2
        with pytest.raises(OSError, match="a device or a pipe"):
            head_of(path, 8)


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o664, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(permissions: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    path.chmod(permissions)
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", permissions)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


def test_a_new_file_can_be_read_by_others_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "plan.yaml", b"new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "plan.yaml") == 0o640


def test_the_draft_of_a_private_file_is_private_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "plan.yaml", list[int]()
    path.write_text("old")
    path.chmod(0o600)
    opened = os.fdopen

    def spy(descriptor: int, how: str) -> object:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return opened(descriptor, how)

    monkeypatch.setattr(os, "fdopen", spy)
    write_atomically(path, b"new")
    assert seen == [0o600]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.fault("F54")
def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


def test_links_are_followed_and_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("plan.yaml")
    (tmp_path / "loop").symlink_to("loop")
    assert followed(tmp_path / "link") == (tmp_path / "plan.yaml").resolve()
    assert followed(tmp_path / "new") == tmp_path.resolve() / "new"
    with pytest.raises(OSError, match="loop"):  # Path.resolve leaves it as it is from Python 3.13 on
        followed(tmp_path / "loop")
