"""A journal on disk: one writer at a time, and an incomplete last line is cut off. A database is made once."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.storages import RDBStorage

from autofit.core.errors import StorageError, StudyError
from autofit.core.trial import Purpose
from autofit.study import storages
from autofit.study.location import StudyPlace
from autofit.study.storages import connect, existing
from tests.study.samples import PLAN, in_optuna, measured, reopen, run

CUT = "the last line of the study was incomplete, as after a crash, and was cut off"


@pytest.mark.parametrize("torn", ['{"op_code":4,"worker', "x", "\0\0\0"])
@pytest.mark.fault("F53")
def test_an_incomplete_last_line_is_cut_off_and_said_once(journal: Path, torn: str) -> None:
    run(journal, measured())
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn.encode())
    storage = existing(StudyPlace.of(journal))
    assert storage is not None
    assert len(storage.get_all_studies()) == 1  # a reader leaves it
    study = reopen(journal)
    assert (study.notes, len(study.earlier())) == ((CUT,), 1)
    assert journal.read_bytes() == whole
    assert reopen(journal).notes == ()


@pytest.mark.fault("F53")
def test_a_journal_whose_first_line_is_incomplete_is_new(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    path.write_text('{"op_co')
    study = reopen(path)
    assert (study.notes, study.earlier()) == ((CUT,), ())


def test_a_line_that_another_process_left_incomplete_is_cut_off_before_the_next_write(journal: Path) -> None:
    study = reopen(journal)
    number = study.begin(PLAN, Purpose.PROBE)
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"wor')
    study.finish(number, measured())
    assert [trial.outcome for trial in reopen(journal).earlier()] == [measured()]


def test_a_lock_of_another_process_is_waited_for_in_time_and_named(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "LOCK_WAIT_S", 0.3)
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)"
    words = [sys.executable, "-c", f"{code}; print('held', flush=True); sys.stdin.readline()", str(journal)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"found TimeoutError: it is locked by .*; expected .* then run again"):
            reopen(journal)
        assert time.monotonic() - began < 20
        child.communicate("\n")
    assert reopen(journal).earlier() == ()


def test_a_killed_writer_leaves_no_lock(journal: Path) -> None:
    pid = os.fork()
    if pid == 0:
        lock = storages._JournalLock(journal)
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    began = time.monotonic()
    run(journal, measured())
    assert time.monotonic() - began < 5
    assert [path.name for path in journal.parent.iterdir()] == [journal.name]


def _record_four(location: str, barrier: "multiprocessing.synchronize.Barrier") -> None:
    barrier.wait()
    study = reopen(location)
    for _ in range(4):
        study.finish(study.begin(PLAN, Purpose.PROBE), measured())


@pytest.mark.leaves("multiprocessing keeps the memory of a barrier until the process ends")
@pytest.mark.parametrize("location", ["{}/s.journal", "sqlite:///{}/s.db?timeout=30"])
def test_processes_that_make_the_same_study_at_once(tmp_path: Path, location: str) -> None:
    where, context = location.format(tmp_path), multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_record_four, args=(where, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [trial.number for trial in reopen(where).earlier()] == list(range(12))
    if "journal" in location:
        assert all(len(trial.constraints) == 2 for trial in in_optuna(Path(where)))


def test_a_database_keeps_the_same_records_as_a_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = reopen(url)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    study.note("winner", {"gain": 1.5})
    study.close()
    again = reopen(url)
    assert ([trial.outcome for trial in again.earlier()], again.location) == ([measured()], url)
    assert again.kept_notes()["winner"] == {"gain": 1.5}
    again.close()


def test_reading_makes_no_file_and_no_tables(tmp_path: Path) -> None:
    assert existing(StudyPlace.of(tmp_path / "s.journal")) is None
    assert existing(StudyPlace.of(f"sqlite:///{tmp_path}/s.db")) is None
    assert existing(StudyPlace.of(f"sqlite:///{tmp_path}/s.db?timeout=1")) is None
    assert list(tmp_path.iterdir()) == []
    connect(StudyPlace.of(f"sqlite:///{tmp_path}/s.db"))
    assert isinstance(existing(StudyPlace.of(f"sqlite:///{tmp_path}/s.db")), RDBStorage)


@pytest.mark.fault("F53")
def test_a_damaged_line_is_named_and_nothing_is_changed(journal: Path) -> None:
    run(journal, measured())
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b'{"op_code":8,"wor\n', *lines[4:]]))
    before = journal.read_bytes()
    with pytest.raises(StudyError, match=r"found a damaged line 4; expected a journal .* Restore the file") as caught:
        reopen(journal)
    assert not isinstance(caught.value, StorageError)
    assert journal.read_bytes() == before
