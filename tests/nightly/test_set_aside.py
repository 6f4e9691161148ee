"""Records that are set aside survive kills and damage, are for their owner alone, and are taken once."""

import json
import multiprocessing
import os
import resource
import signal
import stat
import time
from pathlib import Path

import pytest

from autofit.core.errors import StudyError
from autofit.nightly import set_aside
from autofit.nightly.set_aside import SetAside
from tests.nightly.history_samples import record


@pytest.fixture
def aside(tmp_path: Path) -> SetAside:
    return SetAside(tmp_path / ".autofit" / "jobs.yaml.aside.jsonl")


def test_nothing_is_there_until_something_is_set_aside(aside: SetAside) -> None:
    assert aside.read() == ((), 0)
    with aside.taken() as found:
        assert found == ((), 0)
    assert not aside.path.parent.exists()


def test_records_are_lines_of_json_that_only_their_owner_reads(aside: SetAside) -> None:
    aside.append(record(1))
    aside.append(record(2, "resnet"))
    assert aside.read() == ((record(1), record(2, "resnet")), 0)
    lines = aside.path.read_text().splitlines()
    assert [json.loads(line)["job"] for line in lines] == ["gpt", "resnet"]
    assert stat.S_IMODE(aside.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(aside.path.parent.stat().st_mode) == 0o700


def test_records_are_taken_once_and_kept_if_that_fails(aside: SetAside) -> None:
    aside.append(record(1))
    with pytest.raises(RuntimeError), aside.taken():
        raise RuntimeError("the database is away again")
    with aside.taken() as (records, _):
        assert records == (record(1),)
    assert aside.read() == ((), 0)
    aside.append(record(2))
    assert aside.read() == ((record(2),), 0)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_an_incomplete_last_line_is_ignored(aside: SetAside, cut: int) -> None:
    aside.append(record(1))
    aside.append(record(2))
    os.truncate(aside.path, aside.path.stat().st_size - cut)
    assert aside.read() == ((record(1),), 0)
    aside.append(record(3))
    assert aside.read() == ((record(1), record(3)), 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"99.25", b"9x.25"),
        (b'"job"', b'"jib"'),
        (b"{", b"["),
    ],
)
def test_a_damaged_line_is_lost_alone_and_counted(aside: SetAside, old: bytes, new: bytes) -> None:
    for number in (1, 2):
        aside.append(record(number))
    data = aside.path.read_bytes()
    assert old in data
    aside.path.write_bytes(data.replace(old, new, 1))
    assert aside.read() == ((record(2),), 1)


def test_a_newer_version_is_refused_and_not_touched(aside: SetAside) -> None:
    aside.append(record(1))
    aside.path.write_bytes(aside.path.read_bytes().replace(b"autofit.night/1", b"autofit.night/2"))
    before = aside.path.read_bytes()
    with pytest.raises(StudyError, match=r"aside\.jsonl has records of the schema autofit\.night/2"):
        aside.read()
    with pytest.raises(StudyError), aside.taken():
        pass
    assert aside.path.read_bytes() == before


def test_what_is_not_a_file_of_this_user_is_refused(aside: SetAside, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.write_text("mine")
    aside.append(record(1))
    aside.path.unlink()
    aside.path.symlink_to(other)
    with pytest.raises(StudyError, match="cannot be kept"):
        aside.append(record(1))
    aside.path.unlink()
    aside.path.mkdir()
    for use in (lambda: aside.append(record(1)), aside.read):
        with pytest.raises(StudyError, match="cannot be kept"):
            use()
    assert other.read_text() == "mine"


def test_a_file_that_others_could_read_is_closed_to_them(aside: SetAside) -> None:
    aside.append(record(1))
    aside.path.chmod(0o644)
    aside.append(record(2))
    assert stat.S_IMODE(aside.path.stat().st_mode) == 0o600


def test_a_full_disk_is_a_study_error_and_costs_no_earlier_record(aside: SetAside) -> None:
    aside.append(record(1))
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (aside.path.stat().st_size + 100, kept[1]))
    try:
        with pytest.raises(StudyError, match=r": File too large; expected .* that has space"):
            aside.append(record(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert aside.read() == ((record(1),), 0)
    aside.append(record(3))
    assert aside.read() == ((record(1), record(3)), 0)


def test_a_file_in_use_is_said_with_its_holder(aside: SetAside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_aside, "LOCK_WAIT_S", 0.0)
    aside.append(record(1))
    with aside.taken(), pytest.raises(StudyError, match="is in use: found it locked by another process; expected"):
        aside.append(record(2))


def _append_many(path: Path, first: int) -> None:
    for number in range(first, first + 20):
        SetAside(path).append(record(number))


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
def test_processes_that_append_at_once(aside: SetAside) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_many, args=(aside.path, first)) for first in (0, 100, 200)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    records, lost = aside.read()
    assert lost == 0
    assert sorted(each.id for each in records) == sorted(
        f"gpt-{first + n}" for first in (0, 100, 200) for n in range(20)
    )


def _append_and_say(path: Path, pipe: int) -> None:
    for number in range(10_000):
        SetAside(path).append(record(number))
        os.write(pipe, f"{number}\n".encode())


@pytest.mark.leaves("multiprocessing keeps its resource tracker until the process ends")
@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.011])
def test_what_append_returned_survives_kill_9(aside: SetAside, delay_s: float) -> None:
    read, write = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_append_and_say, args=(aside.path, write))
    process.start()
    os.close(write)
    with open(read) as said:
        said.readline()
        time.sleep(delay_s)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        last = int((["0", *said.read().split()])[-1])
    records, lost = aside.read()
    assert lost == 0
    assert [each.id for each in records][: last + 1] == [f"gpt-{number}" for number in range(last + 1)]
    assert len(records) <= last + 2
    aside.append(record(20_000))
    assert aside.read()[0][-1] == record(20_000)
